"""The runs of a gate: base and head in turns, so that what slows the machine slows both.

    base  head  base  head ─▶ each side agrees with itself? ─▶ base against head
                              they part at step K ─▶ base, head once more, up to K, with its tensors kept
                              one seems slower    ─▶ base  head, four times more: is it?

The pair with tensors shows once more that each side agrees with itself: its steps must be those of the first pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.lab.experiments.entry_call import read_rejection
from harness.lab.experiments.launcher import Executor
from harness.lab.experiments.metrics_file import METRICS, read_metrics
from harness.lab.experiments.recording_result import Problem
from harness.lab.experiments.run import Run, TitledDisplay
from harness.lab.experiments.worktrees import check_imports
from harness.lab.gate.change import Change, Finding, classify_change, equal_but_for
from harness.lab.gate.costs import CostChange, Limits, RunCosts, compare_costs, costs_of_run
from harness.lab.gate.plan import GateContext
from harness.lab.gate.reasons import OfSide, Reason, ReasonCode, Reported, RunFailed
from harness.lab.gate.recorded import recorded_alone
from harness.lab.gate.rounding import MAX_BYTES, Rounding, earliest_phase, measure_rounding, step_bytes
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Difference, Verdict

NUM_CONFIRMING = 4
BASE, HEAD = "base", "head"
ALONE = (Difference.VALUE_ONLY_IN_A, Difference.VALUE_ONLY_IN_B)


class Interrupted(Exception):
    """A signal has asked for the end: nothing follows from the runs so far."""


class BrokenRun(Exception):
    """A run that did not come to its end, or recorded nothing."""

    def __init__(self, side: str, run: Run) -> None:
        super().__init__(side)
        self.side = side
        self.run = run

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons with the messages of its entry if that has rejected its configuration, else of the recording."""
        if rejection := read_rejection(self.run.recording.directory):
            advice = (ReasonCode.LEGAL, rejection.legal), (ReasonCode.REMEDY, rejection.remedy)
            return (self._failed(rejection.what), *(Reported(code, text) for code, text in advice if text))
        problems = self.run.recording.problems or (Problem("it recorded no step"),)
        reasons: list[Reason] = []
        for each in problems:
            reasons.append(self._failed(each.what))
            reasons += [Reported(ReasonCode.REMEDY, each.remedy)] if each.remedy else []
        return tuple(reasons)

    def _failed(self, message: str) -> Reason:
        return RunFailed(ReasonCode.RUN_FAILED, self.side, message)


@dataclass(frozen=True, slots=True)
class Measured:
    """A scenario whose both sides have run."""

    finding: Finding
    costs: tuple[CostChange, ...]


class Recorder:
    """Records the runs of one scenario, each side in a directory of its own."""

    def __init__(
        self, session: Executor, lines: TitledDisplay, directory: Path, *, checkout: Path | None = None
    ) -> None:
        self._checkout = checkout
        self._session = session
        self._lines = lines
        self._directory = directory
        self.runs: dict[str, list[Run]] = {BASE: [], HEAD: []}
        self.kept: dict[str, Run] = {}

    async def record(self, side: str, scene: GateContext) -> Run:
        """One more run of a side. Interrupted, BrokenRun."""
        number = len(self.runs[side]) + 1
        run = await self._run(side, f"{side}, run {number}", scene, number)
        self.runs[side].append(run)
        return run

    def note(self, line: str) -> None:
        """Show a line between two runs."""
        self._lines.end(line)

    async def keep(self, side: str, scene: GateContext, step: int) -> Run:
        """A run up to this step, whose tensors it keeps."""
        run_spec = replace(scene.run_spec, keep=(step,), last_step=step)
        title = f"{side} up to step {step}, whose tensors are kept"
        self.kept[side] = await self._run(f"{side}-kept", title, replace(scene, run_spec=run_spec), 1)
        return self.kept[side]

    async def _run(self, place: str, title: str, scene: GateContext, number: int) -> Run:
        if self._session.interrupted_by:
            raise Interrupted
        self._lines.title = f"{scene.name}: {title}"
        run = await self._session.record(
            scene.run_spec,
            self._directory / place,
            number,
            environ=scene.side.environ_of(scene.run_spec),
            cwd=scene.side.cwd,
        )
        if self._session.interrupted_by:
            raise Interrupted
        self._lines.ended(run)
        if not run.recording.is_complete or not run.recording.num_steps:
            raise BrokenRun(place.partition("-")[0], run)
        if self._checkout is not None and scene.run_spec.call is None:
            check_imports(run, scene.side, self._checkout)
        return run

    def traces(self, side: str) -> list[Trace]:
        """Of the runs of a side so far."""
        return [read_trace(run.recording.directory) for run in self.runs[side]]

    def costs(self, side: str) -> list[RunCosts]:
        """Of the same."""
        return [
            costs_of_run(run.duration_s, read_metrics(run.recording.directory / METRICS)) for run in self.runs[side]
        ]


async def compare_sides(
    recorder: Recorder, base: GateContext, head: GateContext, *, num_runs: int, limits: Limits
) -> Measured:
    """Run both sides in turns, and say what the change has done. Interrupted, BrokenRun."""
    for number in range(num_runs):
        for side, scene in ((BASE, base), (HEAD, head)):
            if len(recorder.runs[side]) <= number:  # against a golden, the head may have run before
                await recorder.record(side, scene)
    finding = await _changed(recorder, base, head)
    costs = compare_costs(recorder.costs(BASE), recorder.costs(HEAD), limits)
    if num_runs > 1 and any(each.is_over_limit for each in costs):
        recorder.note(f"{head.name} seems to cost more: {NUM_CONFIRMING} more runs of each side follow to confirm it")
        for _ in range(NUM_CONFIRMING):
            await recorder.record(BASE, base)
            await recorder.record(HEAD, head)
        costs = compare_costs(recorder.costs(BASE), recorder.costs(HEAD), limits)
    return Measured(finding, costs)


async def _changed(recorder: Recorder, base: GateContext, head: GateContext) -> Finding:
    if unlike := disagreement(recorder):
        return unlike
    traces = recorder.traces(BASE)[0], recorder.traces(HEAD)[0]
    verdict = diff(*traces)
    if verdict.first is None:
        return classify_change(verdict, None)
    if verdict.first.what in ALONE and (alone := recorded_alone(*traces)) is not None:
        return equal_but_for(verdict, alone)
    if not _can_keep(verdict, traces):
        if len(recorder.runs[BASE]) == 1:  # nothing has shown yet that the base agrees with itself
            await recorder.record(BASE, base)
            await recorder.record(HEAD, head)
        return disagreement(recorder) or classify_change(verdict, None)
    step = verdict.first.step
    kept = [
        read_trace((await recorder.keep(side, scene, step)).recording.directory)
        for side, scene in ((BASE, base), (HEAD, head))
    ]
    for side, trace, again in zip((BASE, HEAD), traces, kept, strict=True):
        unlike_itself = diff(excerpt(trace, again.steps[0], again.steps[-1]), again)
        if unlike_itself.first is not None:
            return nondeterministic(side, unlike_itself)
    return _with_values(verdict, *kept)


def _can_keep(verdict: Verdict, traces: Sequence[Trace]) -> bool:
    """Whether a step's tensors tell more: both sides have the value that differs, and it is not too much to keep."""
    first = verdict.first
    if first is None or first.what is not Difference.VALUE:
        return False
    return max(step_bytes(trace, first.step) for trace in traces) <= MAX_BYTES


def _with_values(verdict: Verdict, base: Trace, head: Trace) -> Finding:
    """The finding, with distances from the pair that has kept its tensors."""
    first, again = verdict.first, diff(base, head).first
    assert first is not None and again is not None
    rounding: Rounding | None = measure_rounding(base, head, first.step, earliest_phase(base, head, first.step))
    return classify_change(replace(verdict, first=replace(first, value=first.value or again.value)), rounding)


def disagreement(recorder: Recorder) -> Finding | None:
    """That two runs of one side are not alike; None where they are."""
    for side in (BASE, HEAD):
        traces = recorder.traces(side)
        for other in traces[1:]:
            verdict = diff(traces[0], other)
            if verdict.first is not None:
                return nondeterministic(side, verdict)
    return None


def nondeterministic(side: str, verdict: Verdict) -> Finding:
    """That a side does not agree with itself."""
    return Finding(Change.NONDETERMINISTIC, (OfSide(ReasonCode.SIDE_NONDETERMINISTIC, side),), verdict=verdict)
