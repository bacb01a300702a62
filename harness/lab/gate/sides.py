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
from harness.lab.experiments.launcher import Launcher, Run, TitledDisplay
from harness.lab.experiments.recording_result import METRICS, Problem, read_metrics
from harness.lab.experiments.worktrees import Side, imports_checkout
from harness.lab.gate.change import Change, Comparison, GateCode, classify_change, equal_in_common
from harness.lab.gate.costs import CostChange, Limits, RunCosts, compare_costs, costs_of_run
from harness.lab.gate.result import DEFAULT, OF_COST, failures
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
        self.side, self.run = side, run

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """What its entry says if that has rejected its configuration, else the problems of the recording."""
        problems = self.run.recording.problems or (Problem("it recorded no step"),)
        if rejection := read_rejection(self.run.recording.directory):
            problems = (Problem(f"{rejection.what} (legal: {rejection.legal})", rejection.remedy),)
        return tuple(GateCode.RUN_FAILED(side=self.side, message=each.what, remedy=each.remedy) for each in problems)


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
        self, launcher: Launcher, lines: TitledDisplay, directory: Path, *, checkout: Path | None = None
    ) -> None:
        self._launcher, self._lines, self._directory, self._checkout = launcher, lines, directory, checkout
        self.imports_checkout = False
        """Whether any run has imported code of its side."""
        self.runs: dict[str, list[Run]] = {BASE: [], HEAD: []}

    async def record(self, side: str, context: GateContext) -> None:
        """Add one more run of a side. Interrupted, BrokenRun."""
        number = len(self.runs[side]) + 1
        self.runs[side].append(await self._run(side, side, f"{side}, run {number}", context, number))

    def note(self, line: str) -> None:
        """Show a line between two runs."""
        self._lines.end(line)

    async def keep(self, side: str, context: GateContext, step: int) -> Trace:
        """Make a run up to this step, whose tensors it keeps."""
        context = replace(context, run_spec=replace(context.run_spec, keep=(step,), last_step=step))
        title = f"{side} up to step {step}, whose tensors are kept"
        return read_trace((await self._run(side, f"{side}-kept", title, context, 1)).recording.directory)

    async def _run(self, side: str, place: str, title: str, context: GateContext, number: int) -> Run:
        if self._launcher.interrupted_by:
            raise Interrupted
        self._lines.title = f"{context.name}: {title}"
        spec, environ, cwd = context.run_spec, context.side.environ_of(context.run_spec), context.side.cwd
        run = await self._launcher.record(spec, self._directory / place, number, environ=environ, cwd=cwd)
        if self._launcher.interrupted_by:
            raise Interrupted
        self._lines.ended(run)
        if not run.recording.is_complete or not run.recording.num_steps:
            raise BrokenRun(side, run)
        if self._checkout is not None:
            self.imports_checkout |= imports_checkout(run, context.side, self._checkout)
        return run

    def traces(self, side: str) -> list[Trace]:
        """Return those of the runs of a side so far."""
        return [read_trace(run.recording.directory) for run in self.runs[side]]

    def costs(self, side: str) -> list[RunCosts]:
        """Return those of the same runs."""
        metrics = ((run.duration_s, run.recording.directory / METRICS) for run in self.runs[side])
        return [costs_of_run(duration_s, read_metrics(path)) for duration_s, path in metrics]


async def compare_sides(
    recorder: Recorder,
    contexts: Mapping[str, GateContext],
    *,
    num_runs: int,
    limits: Limits,
    fail_on: Collection[str] = DEFAULT,
) -> tuple[Comparison, tuple[CostChange, ...]]:
    """Run both sides in turns, and return what the change has done, and to costs. Interrupted, BrokenRun.

    More runs follow where a cost seems too high that would fail a gate which passes so far.
    """
    for number in range(num_runs):
        for side, context in contexts.items():
            if len(recorder.runs[side]) <= number:  # against a golden, the head may have run before
                await recorder.record(side, context)
    comparison = await _compared(recorder, contexts)
    costs = compare_costs(recorder.costs(BASE), recorder.costs(HEAD), limits)
    if num_runs > 1 and any(each.is_over_limit and OF_COST[each.kind] in fail_on for each in costs):
        if failures(comparison.change, (), fail_on):  # it fails anyway: nothing is said of costs
            return comparison, tuple(replace(each, is_beyond_noise=False) for each in costs)
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
    kept = {side: await recorder.keep(side, context, first.step) for side, context in contexts.items()}
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
