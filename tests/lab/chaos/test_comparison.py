"""What the runs of a probe are to the baseline: hand-written traces, nothing started."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.chaos.search import Outcome, Sign, compare, compare_crashed, has_died
from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recording_result import Problem, Recording
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import VerdictCode
from harness.trace.writer import TraceWriter
from tests.support.traces import Change, Steps, flip_bit, manifest_of, steps_of, trace

NUM_STEPS = 6


def written(directory: Path, steps: Steps, first: int, *, complete: bool) -> None:
    writer = TraceWriter(directory, manifest_of(), say=print)
    for number, recorded_values in enumerate(steps[first:], start=first):
        writer.append(number, recorded_values)
    writer.close(complete=complete)


def run(
    directory: Path,
    number: int,
    change: Change = lambda step, recorded_value: recorded_value,
    *,
    first: int = 0,
    num_steps: int = NUM_STEPS,
    exit_code: int = 0,
) -> Run:
    """A run of the steps from `first` to below `num_steps`; one that has not ended in order where it has an exit code.

    Without a step it has recorded nothing.
    """
    place = directory / f"run-{number}"
    if first < num_steps:
        written(place, steps_of(num_steps, change), first, complete=not exit_code)
    problems = (Problem(f"exit code {exit_code}"),) if exit_code else ()
    ranks = (0,) if first < num_steps else ()
    return Run(number, False, Recording(place, exit_code, num_steps - first, ranks, 1, problems), 1.0)


@pytest.fixture
def baseline(tmp_path: Path) -> Trace:
    return trace(tmp_path / "baseline", steps_of(NUM_STEPS))


def told(outcome: Outcome) -> tuple[Sign, int | None]:
    return outcome.sign, outcome.step


def test_one_run_is_the_same_or_has_moved_or_broke(tmp_path: Path, baseline: Trace) -> None:
    same = compare(baseline, run(tmp_path, 1), NUM_STEPS)
    assert (told(same), same.has_failed, same.directory) == ((Sign.SAME, None), False, None)
    moved = compare(baseline, run(tmp_path, 2, flip_bit(4, "loss", "loss")), NUM_STEPS)
    assert (told(moved), moved.directory) == ((Sign.MOVED, 4), tmp_path / "run-2")
    assert moved.verdict is not None
    assert moved.verdict.first is not None
    broke = compare(baseline, run(tmp_path, 3, num_steps=3, exit_code=1), NUM_STEPS)
    assert (told(broke), broke.problem) == ((Sign.BROKE, 3), "exit code 1")
    cut = run(tmp_path, 5)
    (tmp_path / "run-5" / "manifest.json").unlink()
    unknown = compare(baseline, cut, NUM_STEPS)
    assert (told(unknown), unknown.problem) == ((Sign.BROKE, 0), "")
    assert unknown.verdict is not None
    assert [reason.code for reason in unknown.verdict.reasons] == [VerdictCode.TRACE_INCOMPLETE]
    nothing = compare(baseline, run(tmp_path, 4, num_steps=0, exit_code=1), NUM_STEPS)
    assert told(nothing) == (Sign.BROKE, 0)


def test_a_run_that_ends_in_order_and_too_early_has_moved(tmp_path: Path, baseline: Trace) -> None:
    assert told(compare(baseline, run(tmp_path, 1, num_steps=4), NUM_STEPS)) == (Sign.MOVED, 4)


def crashed(
    tmp_path: Path, baseline: Trace, *, before: Change | None = None, after: Change | None = None, first: int = 2
) -> Outcome:
    """Killed in step 3, gone on from `first`; with changes to either part."""
    dead = run(tmp_path, 1, before or (lambda step, recorded_value: recorded_value), num_steps=3, exit_code=137)
    gone_on = run(tmp_path, 2, after or (lambda step, recorded_value: recorded_value), first=first)
    return compare_crashed(baseline, dead, gone_on, NUM_STEPS)


def test_both_parts_of_a_crashed_run_are_compared(tmp_path: Path, baseline: Trace) -> None:
    assert told(crashed(tmp_path / "a", baseline)) == (Sign.SAME, None)
    assert told(crashed(tmp_path / "b", baseline, before=flip_bit(2, "loss", "loss"))) == (Sign.MOVED, 2)
    assert told(crashed(tmp_path / "c", baseline, after=flip_bit(5, "loss", "loss"))) == (Sign.MOVED, 5)
    assert told(crashed(tmp_path / "d", baseline, after=flip_bit(2, "loss", "loss"))) == (Sign.MOVED, 2)
    assert told(crashed(tmp_path / "e", baseline, first=3)) == (Sign.SAME, None), "nothing is done twice"
    assert told(crashed(tmp_path / "f", baseline, first=0)) == (Sign.SAME, None), "begun anew"


def test_steps_that_neither_part_has_are_missed(tmp_path: Path, baseline: Trace) -> None:
    found = crashed(tmp_path, baseline, first=4)
    assert told(found) == (Sign.BROKE, 3)
    assert "did not resume from the crashed" in found.problem


def test_one_that_died_before_it_recorded_anything_is_begun_anew(tmp_path: Path, baseline: Trace) -> None:
    dead = run(tmp_path, 1, num_steps=0, exit_code=137)
    assert told(compare_crashed(baseline, dead, run(tmp_path, 2), NUM_STEPS)) == (Sign.SAME, None)
    later = run(tmp_path, 3, first=1)
    assert told(compare_crashed(baseline, dead, later, NUM_STEPS)) == (Sign.BROKE, 0)


def test_only_a_kill_at_its_moment_is_the_crash_that_was_wanted(tmp_path: Path, baseline: Trace) -> None:
    dead = run(tmp_path, 1, num_steps=3, exit_code=137)
    assert has_died(baseline, dead, "3.loss")
    assert has_died(baseline, dead, "2.end")
    assert not has_died(baseline, dead, "2.loss"), "somebody else has killed it"
    assert not has_died(baseline, dead, "4.loss")
    other = replace(dead, recording=replace(dead.recording, exit_code=1))
    assert not has_died(baseline, other, "3.loss")
    assert read_trace(dead.recording.directory).steps == (0, 1, 2)
