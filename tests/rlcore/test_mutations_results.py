"""What the benchmark of faults makes of its runs: findings, sums, the table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.trace.reader import read_trace
from tests.benchmarks.mutations.__main__ import main
from tests.benchmarks.mutations.catalogue import named
from tests.benchmarks.mutations.perturbations import SINGLE, TOGETHER, drawn
from tests.benchmarks.mutations.runner import Results
from tests.benchmarks.mutations.table import as_json, as_markdown, as_text, markers, write_into
from tests.benchmarks.mutations.trials import Finding, Trial, differing, soonest, steps_from
from tests.benchmarks.mutations.workers import Run
from tests.support.traces import flip_bit, manifest_of, steps_of, write

KL = named("kl_sign")
FOUND = Finding(KL, "gate", "the honest engine", ("loss",), "policy", step=2, steps_after=0, num_reached=4, num_runs=5)


def finding(**other: object) -> Finding:
    fields = {name: getattr(FOUND, name) for name in Finding.__slots__}
    return Finding(**{**fields, **other})


# ----------------------------------------------------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("name", "phases", "leaf", "is_localised"),
    [
        ("kl_sign", ("loss",), "policy", True),
        ("kl_sign", ("rollout", "forward"), "", True),
        ("kl_sign", ("optimizer",), "policy.embedding", False),
        ("kl_sign", (), "", False),
        ("prompts_of_a_set", ("rollout",), "prompt_ids", True),
        ("prompts_of_a_set", ("rollout",), "weights_digest", False),
        ("prompts_of_a_set", ("rollout",), "", True),
    ],
)
def test_a_place_is_right_where_phase_and_leaf_are(
    name: str, phases: tuple[str, ...], leaf: str, is_localised: bool
) -> None:
    assert finding(fault=named(name), phases=phases, leaf=leaf).is_localised is is_localised


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_reached": 0}, "kl_sign: NOT REACHED"),
        ({"check": "nothing", "phases": ("loss",)}, "kl_sign: not found by anything"),
        ({"steps_after": 2}, "kl_sign: found 2 steps after its first effect"),
        ({"how": "broken: TypeError"}, "kl_sign: broken: TypeError, by no check"),
        ({"phases": ("sync",)}, "0 of 1 are localised, fewer than 90%"),
    ],
)
def test_each_goal_that_is_missed_is_told(changed: dict[str, object], said: str) -> None:
    assert Results((FOUND,), 0, ()).shortcomings == []
    assert Results((finding(steps_after=1),), 0, ()).shortcomings == []
    assert Results((finding(**changed),), 0, ()).shortcomings == [said]


def test_a_check_that_is_late_does_not_end_it_where_another_is_sooner() -> None:
    late = finding(check="chaos", how="crash and resume", steps_after=4)
    later, in_time = finding(check="gate", steps_after=5), finding(check="gate", steps_after=1)
    assert soonest([]) is None
    asked = iter([in_time, late])
    assert soonest(asked) is in_time
    assert next(asked) is late, "who comes behind one that is in time is not asked"
    assert soonest([late]) is late
    assert soonest([late, later]) is late
    told = soonest([late, in_time])
    assert told is not None
    assert (told.check, told.steps_after) == ("gate", 1)
    assert told.how == "the honest engine; crash and resume, 4 steps after"


def test_a_fault_on_which_no_bit_depends_is_right_where_nothing_is_found() -> None:
    harmless = replace(KL, is_harmless=True)
    nowhere = {"check": "nothing", "how": "", "phases": (), "leaf": "", "step": None, "steps_after": None}
    unseen = finding(fault=harmless, **nowhere)
    assert unseen.is_localised
    assert Results((unseen,), 0, ()).shortcomings == []
    assert "| nothing: no bit depends on it | - | - | yes |" in as_markdown(Results((unseen,), 0, ()), 1.0)
    assert "1 of 1 faults found (1 by gate), 0 later" in as_text(Results((FOUND, unseen), 0, ()), 1.0)
    assert "1 more move no bit" in as_text(Results((FOUND, unseen), 0, ()), 1.0)
    seen = Results((finding(fault=harmless),), 0, ())
    assert seen.shortcomings[0] == "kl_sign: found, and no bit depends on it"
    missed = Results((replace(unseen, fault=KL),), 0, ())
    assert "| **nothing** | - | - | no |" in as_markdown(missed, 1.0)


def test_a_false_alarm_is_a_shortcoming() -> None:
    assert Results((FOUND,), 1, ("pair 0: step 1",)).shortcomings == ["false alarm: pair 0: step 1"]


def run(trace: Path, end: str = "whole", **fields: object) -> Run:
    return Run(trace, end, **fields)  # type: ignore[arg-type]


def test_runs_that_are_alike_are_no_alarm_and_others_are(tmp_path: Path) -> None:
    a = run(write(tmp_path / "a" / "trace", steps_of(4)))
    same = run(write(tmp_path / "b" / "trace", steps_of(4)))
    other = run(write(tmp_path / "c" / "trace", steps_of(4, flip_bit(2, "backward", "layers.0.weight"))))
    assert differing(a, [same], tmp_path) == ""
    assert differing(a, [other], tmp_path).startswith("perturbed: step 2, backward layers.0.weight")
    assert differing(a, [run(same.trace, "refused", error="StepError", what="it")], tmp_path) == "StepError: it"
    assert differing(a, [run(same.trace, "hung")], tmp_path).startswith("hung")
    of_another = run(write(tmp_path / "d" / "trace", steps_of(4), manifest_of(identity={"seed": "8"})))
    assert differing(a, [of_another], tmp_path) == "perturbed: identity differs: seed"


def test_a_run_that_goes_on_is_compared_with_the_later_steps(tmp_path: Path) -> None:
    whole = read_trace(write(tmp_path / "a" / "trace", steps_of(5)))
    later = read_trace(steps_from(whole, 3, tmp_path))
    assert later.steps == (3, 4)
    assert later.gaps == ()
    assert [later.ranks[0].heads[step].root for step in (3, 4)] == [whole.ranks[0].heads[step].root for step in (3, 4)]


def test_drawn_perturbations_are_always_the_same_and_some_crash() -> None:
    pairs = [drawn(seed) for seed in range(100)]
    assert pairs == [drawn(seed) for seed in range(100)]
    assert len({str(each) for each in pairs}) > 90
    assert 5 < sum(each.crashes for each in pairs) < 40
    assert set(TOGETHER.values) == {name for each in SINGLE for name in each.values}
    assert Trial.__doc__


# ------------------------------------------------------------------------------------------------------------- tables


def test_the_table_has_a_row_a_fault_and_the_sums(tmp_path: Path) -> None:
    results = Results((FOUND, finding(fault=named("epoch_skipped"), check="chaos", how="crash and resume")), 100, ())
    text = as_markdown(results, 12.0)
    assert "2 of 2 faults found (1 by chaos, 1 by gate), 0 later than a step" in text
    assert "1 localised; 0 false alarms in 100 honest pairs; 12 s." in text
    assert f"| kl_sign: {KL.about} | {KL.source} | gate, a second revision alone | 2 | loss, `policy` | yes |" in text
    assert text.count("\n| ") == 3
    told = json.loads(as_json(results, 12.0))
    assert [each["name"] for each in told["faults"]] == ["kl_sign", "epoch_skipped"]
    assert [each["needs_golden"] for each in told["faults"]] == [True, False]
    assert "kl_sign" in as_text(results, 12.0)

    document = tmp_path / "DESIGN.md"
    (begin, end), others = markers("trainers"), "\n".join(markers("review"))
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n{others}\n", "utf-8")
    write_into(document, "trainers", results, 12.0)
    written = document.read_text("utf-8")
    assert written == f"before\n{begin}\n{text}\n{end}\nafter\n{others}\n"


def test_a_document_without_markers_is_not_written(tmp_path: Path) -> None:
    document = tmp_path / "DESIGN.md"
    document.write_text("nothing\n", "utf-8")
    with pytest.raises(ValueError, match="mutations: trainers: begin"):
        write_into(document, "trainers", Results((FOUND,), 0, ()), 1.0)
    assert document.read_text("utf-8") == "nothing\n"


@pytest.mark.parametrize(
    "argv", [["--only", "kl_sing"], ["--only", "kl_sign", "--write"], ["--of", "nobody"], ["--pears", "3"]]
)
def test_what_cannot_be_is_refused_before_anything_runs(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(argv)
    assert refused.value.code == 2
    assert "usage:" in capsys.readouterr().err
