"""Compares the runs of a probe with the baseline. Reads traces, starts nothing.

baseline   0 1 2 3 4 5
crashed    0 1 2              every step that it has recorded whole
resumed      1 2 3 4 5        from its checkpoint on; together they have all steps, and each is the baseline's
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.lab.experiments.perturbation_factors import END, parse_moment
from harness.lab.experiments.recording_result import how_it_ended
from harness.lab.experiments.run import Run
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Verdict

SIGKILLED = 137
"""128 and the signal's number, as a shell has it."""


class Sign(Enum):
    """What a probe has shown."""

    SAME = "same"
    """Every bit of every step is the baseline's."""
    MOVED = "moved"
    """One is not."""
    BROKE = "broke"
    """A run did not go to its end, which the baseline did; as far as it went it is the same."""
    NOT_APPLIED = "not_applied"
    """Every bit is the baseline's, and a part of the perturbation never happened: nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A probe that has ended."""

    sign: Sign
    step: int | None = None
    """The first that is not the baseline's, or that is not there; None where all are there and the same."""
    verdict: Verdict | None = None
    """Verdict on baseline (A) and run (B), if a bit has moved or the run cannot be compared; else None."""
    problem: str = ""
    """Why a run is not whole, where it broke; what never happened, where that was not applied."""
    directory: Path | None = None
    """Of the run that shows it; None where all are the same."""

    @property
    def has_failed(self) -> bool:
        """Whether something was found."""
        return self.sign in (Sign.MOVED, Sign.BROKE)


def compare(baseline: Trace, run: Run, num_steps: int) -> Outcome:
    """One run of the first `num_steps` steps."""
    last = baseline.steps[min(num_steps, len(baseline.steps)) - 1]
    return _compare_from(baseline, run, baseline.steps[0], last)


def compare_crashed(baseline: Trace, crashed: Run, gone_on: Run | None, num_steps: int) -> Outcome:
    """A run with a planned crash, and the run that resumed from it; None if it did not crash."""
    steps = baseline.steps[:num_steps]
    if gone_on is None:
        return compare(baseline, crashed, num_steps)
    trace = read_trace(crashed.recording.directory) if crashed.recording.ranks else None
    done = [step for step in trace.steps if step in steps] if trace is not None else []
    if trace is not None and done:
        verdict = diff(excerpt(baseline, done[0], done[-1]), excerpt(trace, done[0], done[-1]))
        if verdict.first is not None:
            return _moved(crashed, verdict)
    if not gone_on.recording.ranks:
        return _broke(gone_on, len(done))
    first = read_trace(gone_on.recording.directory).steps[:1]
    if not first or first[0] not in steps or first[0] > (done[-1] + 1 if done else steps[0]):
        return _broke(gone_on, done[-1] + 1 if done else steps[0], "the run did not resume from the crashed one")
    return _compare_from(baseline, gone_on, first[0], steps[-1])


def has_died(baseline: Trace, run: Run, crash: str) -> bool:
    """Whether a run was killed at the moment at which it was to be."""
    at, phase = parse_moment(crash)
    before = [step for step in baseline.steps if step < at + (phase == END)]
    return run.recording.exit_code == SIGKILLED and run.recording.num_steps == len(before)


def why_alive(baseline: Trace, crash: str, num_steps: int) -> str:
    """Why the moment of a crash never came in a run of the first `num_steps` steps, which is the baseline's."""
    (at, phase), steps = parse_moment(crash), baseline.steps[:num_steps]
    if at not in steps:
        return f"the crash never came: there is no step {at}, the last is {steps[-1]}"
    if phase == END:
        return f"the crash never came: the run ends with step {at}"
    return f"the crash never came: in step {at} the entry records nothing of the phase {phase}"


def _compare_from(baseline: Trace, run: Run, first: int, last: int) -> Outcome:
    """A run with what the baseline has from its own first step on."""
    if not run.recording.ranks:
        return _broke(run, first)
    trace = read_trace(run.recording.directory)
    verdict = diff(excerpt(baseline, first, last), trace)
    if verdict.first is not None:
        return _moved(run, verdict)
    if not run.recording.is_complete:
        return _broke(run, trace.steps[-1] + 1 if trace.steps else first)
    if verdict.reasons:
        return Outcome(Sign.BROKE, first, verdict, directory=run.recording.directory)
    return Outcome(Sign.SAME)


def _moved(run: Run, verdict: Verdict) -> Outcome:
    assert verdict.first is not None
    return Outcome(Sign.MOVED, verdict.first.step, verdict, directory=run.recording.directory)


def _broke(run: Run, step: int, problem: str = "") -> Outcome:
    problems = [problem] if problem else [each.what for each in run.recording.problems]
    problems = problems or [how_it_ended(run.recording.exit_code)]
    return Outcome(Sign.BROKE, step, problem=problems[0], directory=run.recording.directory)
