"""The runs of a gate: base and head in turns, so that what slows the machine slows both.

    base  head  base  head ─▶ each side agrees with itself? ─▶ base against head
                              they part at step K ─▶ base, head once more, up to K, with its tensors kept
                              one seems slower    ─▶ base  head, four times more: is it?

The pair with tensors shows once more that each side agrees with itself: its steps must be those of the first pair.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.bits.findings import Finding
from harness.lab.experiments.launcher import Executor, Run, TitledDisplay
from harness.lab.experiments.recording_result import METRICS, Problem, read_metrics
from harness.lab.experiments.worktrees import Side, imports_checkout
from harness.lab.gate.change import Change, Comparison, GateCode, classify_change, equal_in_common
from harness.lab.gate.costs import MEMORY, SECONDS, CostChange, Limits, RunCosts, compare_costs, costs_of_run
from harness.lab.gate.rounding import MAX_BYTES, earliest_phase, measure_rounding, step_bytes
from harness.recording.entry_call import read_rejection
from harness.recording.run_spec import RunSpec
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
    def reasons(self) -> tuple[Finding, ...]:
        """What its entry says if that has rejected its configuration, else the problems of the recording."""
        if rejection := read_rejection(self.run.recording.directory):
            return (self._failed(f"{rejection.what} (legal: {rejection.legal})", rejection.remedy),)
        problems = self.run.recording.problems or (Problem("it recorded no step"),)
        return tuple(self._failed(each.what, each.remedy) for each in problems)

    def _failed(self, message: str, remedy: str) -> Finding:
        return GateCode.RUN_FAILED(side=self.side, message=message, remedy=remedy)


@dataclass(frozen=True, slots=True)
class GateContext:
    """A scenario or a command on one side, ready to be run."""

    name: str
    size: str
    side: Side = field(repr=False)
    run_spec: RunSpec = field(repr=False)


class Recorder:
    """Records the runs of one scenario, each side in a directory of its own."""

    def __init__(
        self, session: Executor, lines: TitledDisplay, directory: Path, *, checkout: Path | None = None
    ) -> None:
        self._checkout = checkout
        self.imports_checkout = False
        """Whether any run has imported code of its side."""
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
        if self._checkout is not None:
            self.imports_checkout |= imports_checkout(run, scene.side, self._checkout)
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
    recorder: Recorder,
    contexts: Mapping[str, GateContext],
    *,
    num_runs: int,
    limits: Limits,
    confirmed: Collection[str] = (SECONDS, MEMORY),
) -> tuple[Comparison, tuple[CostChange, ...]]:
    """Run both sides in turns, and return what the change has done, and to costs. Interrupted, BrokenRun.

    More runs follow where a cost of a `confirmed` kind seems too high.
    """
    for number in range(num_runs):
        for side, context in contexts.items():
            if len(recorder.runs[side]) <= number:  # against a golden, the head may have run before
                await recorder.record(side, context)
    comparison = await _compared(recorder, contexts)
    costs = compare_costs(recorder.costs(BASE), recorder.costs(HEAD), limits)
    if num_runs > 1 and any(each.is_over_limit and each.kind in confirmed for each in costs):
        name = contexts[HEAD].name
        recorder.note(f"{name} seems to cost more: {NUM_CONFIRMING} more runs of each side follow to confirm it")
        for _ in range(NUM_CONFIRMING):
            await _record_both(recorder, contexts)
        costs = compare_costs(recorder.costs(BASE), recorder.costs(HEAD), limits)
    return comparison, costs


async def _record_both(recorder: Recorder, contexts: Mapping[str, GateContext]) -> None:
    for side, context in contexts.items():
        await recorder.record(side, context)


async def _compared(recorder: Recorder, contexts: Mapping[str, GateContext]) -> Comparison:
    if unlike := disagreement(recorder):
        return unlike
    traces = {side: recorder.traces(side)[0] for side in contexts}
    verdict = diff(traces[BASE], traces[HEAD])
    first = verdict.first
    if first is None:
        return classify_change(verdict, None)
    if first.what in ALONE and (equal := equal_in_common(verdict, traces[BASE], traces[HEAD])) is not None:
        return equal
    # Tensors say more where both sides have the value that differs, and it is not too much to keep.
    if first.what is not Difference.VALUE or max(step_bytes(each, first.step) for each in traces.values()) > MAX_BYTES:
        if len(recorder.runs[BASE]) == 1:  # nothing has shown yet that the base agrees with itself
            await _record_both(recorder, contexts)
        return disagreement(recorder) or classify_change(verdict, None)
    kept = {
        side: read_trace((await recorder.keep(side, context, first.step)).recording.directory)
        for side, context in contexts.items()
    }
    for side, again in kept.items():
        unlike_itself = diff(excerpt(traces[side], again.steps[0], again.steps[-1]), again)
        if unlike_itself.first is not None:
            return nondeterministic(side, unlike_itself)
    sides = kept[BASE], kept[HEAD]
    again_first = diff(*sides).first
    assert again_first is not None
    rounding = measure_rounding(*sides, first.step, earliest_phase(*sides, first.step))
    return classify_change(replace(verdict, first=replace(first, value=first.value or again_first.value)), rounding)


def disagreement(recorder: Recorder) -> Comparison | None:
    """That two runs of one side are not alike; None where they are."""
    for side in (BASE, HEAD):
        traces = recorder.traces(side)
        for other in traces[1:]:
            verdict = diff(traces[0], other)
            if verdict.first is not None:
                return nondeterministic(side, verdict)
    return None


def nondeterministic(side: str, verdict: Verdict) -> Comparison:
    """That a side does not agree with itself."""
    return Comparison(Change.NONDETERMINISTIC, (GateCode.SIDE_NONDETERMINISTIC(side=side),), verdict=verdict)
