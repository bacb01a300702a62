"""What --break-on and --until say, to a run of whatever command."""

from pathlib import Path

import pytest

from harness.core.errors import TraceError, UsageError
from harness.lab.experiments.break_conditions import (
    BREAKPOINTS,
    conditions_of,
    conditions_of_one_run,
    exit_code_of,
    read_report,
    with_conditions,
)
from harness.lab.experiments.run_spec import RunSpec
from harness.recording.conditions import Condition, Stop


def test_both_options_are_read_and_words_belong_to_one_of_them() -> None:
    found = conditions_of(("nan", "loss>3"), ("reward<0.2",))
    assert [str(each) for each in found] == ["nan", "loss>3.0", "reward<0.2"]
    with pytest.raises(UsageError, match=r"--until nan\n  legal:  a comparison[\s\S]*remedy: --break-on nan"):
        conditions_of((), ("nan",))


def test_a_run_that_knows_of_no_other_cannot_diverge() -> None:
    assert conditions_of_one_run(("nan",), ()) == (Condition("nan"),)
    with pytest.raises(UsageError, match="no recorded run to differ from") as refused:
        conditions_of_one_run(("nan", "divergence"), ())
    assert refused.value.legal.startswith("nan, inf, or")
    assert refused.value.remedy.startswith("rlharness replay")


COMPARISON = "a name of the curve, one of <= >= == != < > and a number"


@pytest.mark.parametrize(
    ("break_on", "until", "legal", "legal_of_one_run"),
    [
        (("reward<",), (), f"nan, inf, divergence, or {COMPARISON}", f"nan, inf, or {COMPARISON}"),
        ((), ("reward<",), COMPARISON, COMPARISON),
    ],
)
def test_what_is_no_condition_is_told_what_is_one_here(
    break_on: tuple[str, ...], until: tuple[str, ...], legal: str, legal_of_one_run: str
) -> None:
    for read, expected in (conditions_of, legal), (conditions_of_one_run, legal_of_one_run):
        with pytest.raises(UsageError, match="'reward<'") as refused:
            read(break_on, until)
        assert refused.value.legal == expected


def test_divergence_is_no_comparison_and_its_remedy_is_one_that_works_here() -> None:
    for read, remedy in (
        (conditions_of, "--break-on divergence"),
        (conditions_of_one_run, "rlharness replay SCENARIO --against RUN --break-on divergence"),
    ):
        with pytest.raises(UsageError, match="--until divergence") as refused:
            read((), ("divergence",))
        assert refused.value.remedy == remedy


def test_an_envelope_is_watched_only_where_something_is_looked_for(tmp_path: Path) -> None:
    plain = RunSpec(("python",), callbacks={"a:b": {"c": 1}})
    assert with_conditions(plain, (), tmp_path / "stop.json") is plain
    told = with_conditions(plain, [Condition("nan")], tmp_path / "stop.json", tmp_path / "other").callbacks
    expected = {"conditions": ["nan"], "report": str(tmp_path / "stop.json"), "against": str(tmp_path / "other")}
    assert told == {"a:b": {"c": 1}, BREAKPOINTS: expected}
    assert with_conditions(plain, [Condition("nan")], tmp_path / "stop.json").callbacks[BREAKPOINTS]["against"] == ""


def test_a_report_is_where_a_run_has_ended_or_what_was_typed_wrongly(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.json") is None
    Stop("nan", 3).write(tmp_path / "met.json")
    assert read_report(tmp_path / "met.json") == Stop("nan", 3)
    Stop("", 0, unknown="lose", known=("loss", "reward_mean")).write(tmp_path / "unknown.json")
    with pytest.raises(
        UsageError, match=r"no value 'lose'\n  legal:  loss, reward_mean\n  remedy: did you mean 'loss'"
    ):
        read_report(tmp_path / "unknown.json")
    (tmp_path / "cut.json").write_text('{"condition": "na', "utf-8")
    with pytest.raises(TraceError, match="does not report where the run ended"):
        read_report(tmp_path / "cut.json")


def test_a_divergence_alone_is_no_success() -> None:
    assert [int(exit_code_of(Stop(word, 1))) for word in ("nan", "inf", "loss>3.0", "divergence")] == [0, 0, 0, 10]
