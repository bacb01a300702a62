"""What `rlharness reproduce` prints: whole against a golden, line by line elsewhere, and as JSON."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recorded_run import RecordedRun
from harness.lab.experiment.recording_result import Problem, Recording
from harness.lab.reproduce.reproduction import Ending, Repeated, Reproduction, StepOperations, StepPlan
from harness.recording.metrics import Stop
from harness.recording.run_spec import EntryCall, RunSpec
from harness.render.operations import non_finite_lines
from harness.render.recording import where
from harness.render.replay import step_json, step_text
from harness.trace.diff import diff
from harness.trace.manifest import Manifest
from harness.trace.ops import INF, NAN, NonFinite, Operation, OpValue
from harness.trace.reader import Trace
from harness.trace.verdict import Kind, Verdict
from tests.support.manual import goldens
from tests.support.traces import flip_bit, steps_of, trace

EQUAL = Verdict(Kind.EQUAL, num_steps=1)
WIDE, WEIGHT = "16,16,64", "64"


def operation(
    index: int, line: int, reads: Sequence[tuple[str, tuple[str, ...]]], *gives: str, name: str = "aten.mul.Tensor"
) -> Operation:
    inputs = tuple(OpValue("f32", shape, "xxh3_128", "00" * 16, words) for shape, words in reads)
    outputs = (OpValue("f32", WIDE, "xxh3_128", "00" * 16, gives),)
    at = f"rlcore/numerics/norms.py:{line} backward"
    makers = tuple(-1 for _ in reads)
    return Operation(index, "backward", name, at, "", "", inputs, makers, "", outputs)


ORIGIN = operation(1751, 38, [(WIDE, ()), (WEIGHT, ())], INF)
MADE = operation(1754, 38, [(WIDE, (INF,)), ("16,16,1", ())], NAN, name="aten.mul_.Tensor")
FIRST = NonFinite(NAN, MADE, origin=ORIGIN, num_between=1)
OPERATIONS = StepOperations(0, {"forward": 2347, "backward": 820}, "", FIRST, True)


def repeated(*verdicts: Verdict, ending: Ending = Ending.SAME_MIDDLE, operations: bool = True) -> Repeated:
    run = RecordedRun(Trace(Path("broken"), Manifest(), {}, ()), EntryCall("a:b", {}))
    plan = StepPlan(run, 1, 1, RunSpec(("python",)), is_from_checkpoint=True, has_operations=operations)
    root = bytes.fromhex("8daab07e9e38393979b547a535943b58")
    problem = Problem("the program ended with exit code 1")
    made = Run(1, False, Recording(Path("out/run-1"), 1, 0, (0,), 100, (problem,)), 4.0)
    return Repeated(plan, (made,), verdicts, 49, root, ending, (OPERATIONS,) if operations else ())


def reproduction_of(found: Repeated, *, interrupted_by: str = "") -> Reproduction:
    directory = Path(".rlharness/reproductions/20261122-185252-12956a")
    return Reproduction(found, directory, interrupted_by)


def test_the_text_is_the_golden_and_the_manual_shows_it(golden: Callable[[str, str], None]) -> None:
    text = step_text(reproduction_of(repeated(EQUAL)), colour=False) + "\n"
    golden("step_reproduced.txt", text)
    assert goldens("step_reproduced") == {"step_reproduced": text}


def test_a_step_that_is_not_the_same_is_told_as_diff_tells_it(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")))
    reproduced = reproduction_of(repeated(diff(a, b), ending=Ending.WHOLE, operations=False))
    text = step_text(reproduced, colour=True)
    assert text.startswith(
        "A: broken  B: its step 1 repeated\n\x1b[1;31mDIVERGED\x1b[0m  step 1: the loss differs, 1.0000001 against 1\n"
    )
    assert "  the program ended with exit code 1\n" in text
    assert reproduced.exit_code == 10
    assert step_json(reproduced)["comparisons"][0]["first"]["a"]["name"] == "loss"


def test_a_step_of_which_nothing_was_recorded_is_no_success() -> None:
    reproduced = reproduction_of(repeated(operations=False))
    assert step_text(reproduced, colour=False).startswith("NOTHING RECORDED  step 1 of broken\n")
    assert reproduced.exit_code == 12
    assert reproduction_of(repeated(EQUAL), interrupted_by="SIGINT").exit_code == 2


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (NonFinite(INF, ORIGIN), ["first Inf: produced by backward aten.mul.Tensor (#1751)"]),
        (NonFinite(NAN, None, read_by=MADE), ["first NaN: it existed before the step", "  first read by backward"]),
        (
            NonFinite(NAN, MADE),
            ["first NaN: produced by", "    it read f32 [16, 16, 64] with Inf", "  from an Inf that existed"],
        ),
        (
            NonFinite(NAN, MADE, origin=ORIGIN, num_between=2),
            ["first NaN", "    it", "  from an Inf, passed on by 2 operations, that was"],
        ),
    ],
)
def test_where_a_number_ceased_to_be_one(found: NonFinite, lines: list[str]) -> None:
    told = list(non_finite_lines(found))
    assert all(line.startswith(start) for line, start in zip(told, lines, strict=False)), told


# --------------------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (Stop("nan", 7, 0, "backward", "w", 1, (3, 1), "nan"), "nan at step 7, backward w #1, element [3, 1]: nan"),
        (Stop("inf", 7, 2, "loss", "loss"), "inf at step 7, rank 2, loss loss"),
        (Stop("reward<0.2", 7, name="reward_mean", value="0.1"), "reward<0.2 after step 7: reward_mean is 0.1"),
        (Stop("inf", 7, value="the gradient\x1b is inf"), "inf at step 7: the gradient\\x1b is inf"),
    ],
)
def test_where_a_run_has_ended(stop: Stop, text: str) -> None:
    assert where(stop) == text
