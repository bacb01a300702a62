"""Conditions on which a run ends, as they are typed, and when they hold."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.recording.metrics import (
    OPERATORS,
    Condition,
    Stop,
    parse_condition,
    read_stop,
    refuse_unknown,
)
from harness.trace.values import Float
from tests.support.traces import SEEDED

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_./-]{0,8}", fullmatch=True)
BLANKS = st.text(" \t", max_size=2)


@SEEDED
@given(NAMES, st.sampled_from(sorted(OPERATORS)), st.floats(allow_nan=False), BLANKS, BLANKS)
def test_what_is_typed_is_read(name: str, relation: str, number: float, before: str, after: str) -> None:
    found = parse_condition(f"{before}{name}{after}{relation}{before}{number!r}{after}")
    assert (found.relation, found.number, found.word) == (relation, number, "")
    assert parse_condition(str(found)) == found


@SEEDED
@given(st.sampled_from(sorted(OPERATORS)), st.floats(width=32, allow_nan=False), st.floats(width=32))
def test_a_comparison_holds_as_python_says(relation: str, number: float, value: float) -> None:
    condition = Condition("", "loss", relation, number)
    expected = eval(f"value {relation} number", {"value": value, "number": number})
    assert condition.holds({"loss": Float.of(value, "f32")}) is expected
    assert not condition.holds({"other": Float.of(value)})


def test_names_are_those_of_the_curve_whatever_a_program_calls_them() -> None:
    reward = parse_condition("reward<1")
    assert reward.holds({"reward_mean": Float.of(0.5)})
    assert reward.holds({"reward": Float.of(0.5), "reward_mean": Float.of(1.5)})
    assert not reward.holds({"reward": Float.of(1.5), "reward_mean": Float.of(0.5)})
    assert [parse_condition(text).word for text in ("nan", " inf ")] == ["nan", "inf"]


@SEEDED
@given(st.text(max_size=20))
def test_anything_else_is_refused_by_a_typed_error(text: str) -> None:
    try:
        found = parse_condition(text, "--break-on")
    except UsageError as error:
        assert error.what.startswith("--break-on")  # noqa: PT017
        assert "inf" in error.legal  # noqa: PT017
    else:
        assert found.word or (found.name and found.relation and not math.isnan(found.number))


def test_a_name_that_no_curve_has_is_refused_with_those_it_has() -> None:
    known = ["reward_mean", "loss", "grad_norm"]
    refuse_unknown([], known)
    with pytest.raises(UsageError, match=r"'lose'[\s\S]*grad_norm, loss, reward_mean"):
        refuse_unknown(["lose"], known)


def test_the_first_stop_that_is_written_counts(tmp_path: Path) -> None:
    first = Stop("nan", 3, 1, "loss", "loss", 2, (0, 4), "nan")
    path = tmp_path / "stop.json"
    assert read_stop(path) is None
    first.write(path)
    with pytest.raises(FileExistsError):
        Stop("inf", 9).write(path)
    assert read_stop(path) == first
    assert [each.name for each in tmp_path.iterdir()] == ["stop.json"]
