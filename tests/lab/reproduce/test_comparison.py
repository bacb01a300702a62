"""Whether a step that was run again is the recorded one: whole, ended in its middle, gone further, or ended before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recorded_run import RecordedRun
from harness.lab.experiment.recording_result import Recording
from harness.lab.reproduce.reproduction import Ending, Repeated, StepPlan, compare_step
from harness.recording.operations import OpLog
from harness.recording.run_spec import EntryCall, RunSpec
from harness.trace.format import UNFINISHED, RecordedValue, Scope
from harness.trace.reader import read_trace
from harness.trace.writer import TraceWriter
from tests.support.traces import Change, flip_bit, manifest_of, steps_of

OP = {"k": "op", "i": 0, "phase": "forward", "op": "aten.exp.default", "at": "a.py:1 f", "args": "", "from": [-1]}
LAST = 3


def record(
    directory: Path,
    first: int = 0,
    num_values: int | None = None,
    change: Change = lambda step, recorded_value: recorded_value,
) -> Path:
    """Steps `first` to LAST; the last one with so many leaves only, in `unfinished`, where that is given."""
    steps = steps_of(LAST + 1, change)
    whole = range(first, LAST + (num_values is None))
    _write(directory, whole, steps)
    if num_values is not None:
        _write(directory / UNFINISHED, [LAST], [*steps[:LAST], steps[LAST][:num_values]])
    return directory


def _write(directory: Path, numbers: Sequence[int], steps: Sequence[Sequence[RecordedValue]]) -> None:
    with TraceWriter(directory, manifest_of(), say=print) as writer:
        for number in numbers:
            writer.append(number, steps[number])


def run_in(directory: Path, *, is_with_operations: bool = False) -> Run:
    return Run(1, is_with_operations, Recording(directory, 0, 1, (0,), 1), 1.0)


def judged(recorded: Path, *again: Path) -> Repeated:
    plan = StepPlan(RecordedRun(read_trace(recorded), EntryCall("a:b", {})), LAST, 2, RunSpec(("python",)))
    return compare_step(plan, [run_in(each, is_with_operations=number > 0) for number, each in enumerate(again)])


def test_a_step_that_is_the_same_is_reproduced_with_those_before_it(tmp_path: Path) -> None:
    found = judged(record(tmp_path / "a"), record(tmp_path / "b", 2))
    assert (found.is_reproduced, found.ending, found.num_values, found.exit_code) == (
        True,
        Ending.WHOLE,
        6,
        ExitCode.OK,
    )
    assert [verdict.num_steps for verdict in found.verdicts] == [2]
    assert found.root == read_trace(tmp_path / "b").ranks[0].heads[LAST].root


@pytest.mark.parametrize("at", [2, 3])
def test_one_bit_of_any_step_that_was_run_again_is_a_divergence(tmp_path: Path, at: int) -> None:
    change = flip_bit(at, "backward", "layers.1.weight")
    found = judged(record(tmp_path / "a"), record(tmp_path / "b", 2, change=change))
    assert not found.is_reproduced
    assert found.different is not None
    assert found.different.first is not None
    assert (found.different.first.step, found.exit_code) == (at, ExitCode.DIVERGED)


@pytest.mark.parametrize(
    ("recorded", "again", "is_same", "ending"),
    [
        (4, 4, True, Ending.SAME_MIDDLE),
        (4, 5, True, Ending.GOES_ON),
        (4, None, True, Ending.GOES_ON),
        (4, 3, False, Ending.GOES_ON),
        (None, 4, False, Ending.WHOLE),
    ],
)
def test_a_step_that_did_not_end_is_compared_as_far_as_it_went(
    tmp_path: Path, recorded: int | None, again: int | None, *, is_same: bool, ending: Ending
) -> None:
    found = judged(record(tmp_path / "a", 0, recorded), record(tmp_path / "b", 2, again))
    assert (found.is_reproduced, found.ending) == (is_same, ending)
    assert found.exit_code == (ExitCode.OK if is_same else ExitCode.DIVERGED)


@pytest.mark.parametrize("scope", [Scope.LOGICAL, Scope.PHYSICAL])
@pytest.mark.parametrize("again", [4, 5, None])
def test_one_bit_of_a_step_that_did_not_end_is_a_divergence(tmp_path: Path, again: int | None, scope: Scope) -> None:
    """Also where the automatic recorder has come no further than to what leads to the weights, which decide."""

    def scoped(step: int, value: RecordedValue) -> RecordedValue:
        return value if value.phase == "optimizer" else value._replace(scope=scope)

    flipped = flip_bit(LAST, "loss", "loss")
    recorded = record(tmp_path / "a", 0, 4, scoped)
    assert judged(recorded, record(tmp_path / "same", 2, again, scoped)).is_reproduced
    found = judged(recorded, record(tmp_path / "b", 2, again, lambda step, value: scoped(step, flipped(step, value))))
    assert found.exit_code == ExitCode.DIVERGED
    assert found.different is not None
    assert found.different.first is not None
    assert found.different.first.a is not None
    assert found.different.first.a.name == "loss"


def test_nothing_recorded_is_no_proof(tmp_path: Path) -> None:
    plan = judged(record(tmp_path / "a"), record(tmp_path / "b", 2)).plan
    silent = replace(run_in(tmp_path), recording=Recording(tmp_path, 1, 0, (), 1))
    for runs in ([], [silent]):
        found = compare_step(plan, runs)
        assert (found.is_reproduced, found.exit_code) == (False, ExitCode.INCOMPLETE_RECORDING)


def with_operations(directory: Path, gives: str, change: Change = lambda step, recorded_value: recorded_value) -> Path:
    log = OpLog(record(directory, 2, change=change), rank=0, step=LAST, say=print)
    log.append({**OP, "in": ["f32 8 xxh3_128 aa"], "out": [f"f32 8 xxh3_128 {gives}"]})
    log.close()
    return directory


def test_operations_count_where_the_step_came_out_the_same_with_them(tmp_path: Path) -> None:
    recorded, plain = record(tmp_path / "a"), record(tmp_path / "b", 2)
    faithful = judged(recorded, plain, with_operations(tmp_path / "c", "bb inf"))
    (operations,) = faithful.operations
    assert (operations.is_faithful, dict(operations.num_by_phase)) == (True, {"forward": 1})
    assert operations.non_finite is not None
    other = judged(recorded, plain, with_operations(tmp_path / "d", "cc", flip_bit(LAST, "loss", "loss")))
    assert [each.is_faithful for each in other.operations] == [False]
    assert other.is_reproduced, "the run that decides is the one without"


def test_a_bit_of_a_step_before_the_checkpoint_does_not_count(tmp_path: Path) -> None:
    def change(step: int, recorded_value: RecordedValue) -> RecordedValue | None:
        return None if step < 2 and recorded_value.name == "loss" else recorded_value

    assert judged(record(tmp_path / "a", change=change), record(tmp_path / "b", 2)).is_reproduced
