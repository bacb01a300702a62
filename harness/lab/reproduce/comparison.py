"""Whether a step that was run again is the recorded one, and what its operations show. Reads traces, starts nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.bundles.making import write_bundle_of
from harness.lab.experiments.hints import NextCommand, next_command, step_command
from harness.lab.experiments.launcher import Run
from harness.lab.experiments.recorded_run import is_unfinished, root_of, trace_of_step
from harness.lab.reproduce.plan import StepPlan
from harness.trace.chain import CHAINED
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.global_values import global_root
from harness.trace.non_finite import NonFinite, find_non_finite
from harness.trace.ops import OpRecord, OpVerdict, compare_ops, is_faithful, read_ops, recorded_steps
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import BY_WEIGHT, EXIT_CODES, Kind, Verdict


@dataclass(frozen=True, slots=True)
class StepOperations:
    """The operations of a step, of one rank, as one more run has recorded them."""

    rank: int
    num_by_phase: Mapping[str, int]
    problem: str
    """Why the record is not whole; empty where it is."""
    non_finite: NonFinite | None
    is_faithful: bool
    """Whether the step came out with this record as it does without it."""


class Ending(Enum):
    """How the recorded step ends, and the one that was run again."""

    WHOLE = "whole"
    """The recorded one as a step does; or the one that was run again is not the same."""
    SAME_MIDDLE = "same_middle"
    """Both stop in the middle of the step, at the same value."""
    GOES_ON = "goes_on"
    """The recorded run stops in the middle of the step; run again, it continues from there."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A step of a recorded run, and what came out when it was run again."""

    plan: StepPlan
    runs: tuple[Run, ...]
    """Without operations, and with them where that was asked for."""
    verdicts: tuple[Verdict, ...]
    """On the recorded steps (A) and those that were run again (B): of steps that ended, of the one that did not."""
    num_values: int = 0
    """Of the recorded step."""
    root: bytes = b""
    """Of the recorded step, rank 0."""
    ending: Ending = Ending.WHOLE
    operations: tuple[StepOperations, ...] = ()

    @property
    def is_reproduced(self) -> bool:
        """Whether every step that was run again is the recorded one, bit by bit."""
        return bool(self.verdicts) and all(verdict.kind is Kind.EQUAL for verdict in self.verdicts)

    @property
    def different(self) -> Verdict | None:
        """The first verdict that is not EQUAL."""
        return next((verdict for verdict in self.verdicts if verdict.kind is not Kind.EQUAL), None)

    @property
    def exit_code(self) -> ExitCode:
        """OK where it was reproduced; else the verdict's own."""
        codes = {EXIT_CODES[verdict.kind] for verdict in self.verdicts} or {ExitCode.INCOMPLETE_RECORDING}
        return next(code for code in BY_WEIGHT if code in codes)


@dataclass(frozen=True, slots=True)
class OtherRun:
    """The same step of another run, set against it."""

    repeated: Repeated
    verdict: Verdict | None
    """On the step of the run (A) and of the other (B), both run again; None where one was not recorded."""
    operations: tuple[OpVerdict, ...] = ()
    """Of each rank."""


@dataclass(frozen=True, slots=True)
class OtherTrace:
    """A trace as it lies there, set against all steps of a run."""

    directory: Path
    verdict: Verdict
    """On the run that was run again (A) and the trace (B)."""


def compare_step(plan: StepPlan, runs: Sequence[Run]) -> Repeated:
    """What a step is to the recorded one, from the runs that have repeated it: without operations, then with them."""
    recorded, again = plan.run.trace, _trace(runs[0]) if runs else None
    if again is None:
        return Repeated(plan, tuple(runs), ())
    a, b = trace_of_step(recorded, plan.step), trace_of_step(again, plan.step)
    return Repeated(
        plan=plan,
        runs=tuple(runs),
        verdicts=tuple(_verdicts(plan, recorded, again)),
        num_values=_num_values(a, plan.step),
        root=(global_root(a, plan.step) if a is not None else None) or b"",
        ending=_ending(recorded, a, b, plan.step),
        operations=tuple(_operations(plan, b, runs[1:])),
    )


def classify_other(repeated: Repeated, other: Repeated) -> OtherRun:
    """What the same step is to the one of another run."""
    a, b = (_trace_of_step(each) for each in (repeated, other))
    verdict = None if a is None or b is None else diff(a, b)
    directories = [_operations_directory(each.runs) for each in (repeated, other)]
    found = []
    for operations in repeated.operations:
        records = [_record(directory, operations.rank, repeated.plan.step) for directory in directories]
        if records[0] is not None and records[1] is not None:
            found.append(compare_ops(records[0], records[1], operations.rank, repeated.plan.step))
    return OtherRun(other, verdict, tuple(found))


def check_trace(repeated: Repeated, other: Trace) -> OtherTrace | None:
    """What a run that was run again is to a trace, in all steps; None where nothing was recorded."""
    again = _trace(repeated.runs[0]) if repeated.runs else None
    return None if again is None else OtherTrace(other.directory, diff(again, other))


def _verdicts(plan: StepPlan, recorded: Trace, again: Trace) -> Iterator[Verdict]:
    """On the steps that ended, together; then on the last one where it did not end in both."""
    a, b = trace_of_step(recorded, plan.step), trace_of_step(again, plan.step)
    is_complete = plan.step in recorded.steps and plan.step in again.steps
    last = plan.step if is_complete else plan.step - 1
    if last >= plan.first:
        known = [step for step in again.steps if step <= last]
        yield diff(excerpt(recorded, plan.first, last), excerpt(again, plan.first, last) if known else again)
    if not is_complete and a is not None:
        has_gone_on = plan.step not in recorded.steps and b is not None and _begins_as(b, a, plan.step)
        yield Verdict(Kind.EQUAL, num_steps=1) if has_gone_on else diff(a, again if b is None else b)


def _begins_as(trace: Trace, beginning: Trace, step: int) -> bool:
    """Whether a step is, as far as the beginning of it was recorded elsewhere, the same in every leaf that counts."""
    if trace.ranks.keys() != beginning.ranks.keys():
        return False
    for rank in beginning.ranks:
        values = list(beginning.columns(step, rank).values())
        of_trace = list(trace.columns(step, rank).values())[: len(values)]
        if [value for value in of_trace if value.scope in CHAINED] != [
            value for value in values if value.scope in CHAINED
        ]:
            return False
    return True


def _ending(recorded: Trace, a: Trace | None, b: Trace | None, step: int) -> Ending:
    if not is_unfinished(recorded, step):
        return Ending.WHOLE
    return Ending.SAME_MIDDLE if _num_values(a, step) == _num_values(b, step) else Ending.GOES_ON


def _num_values(trace: Trace | None, step: int) -> int:
    """Over all ranks."""
    return sum(log.heads[step].num_values for log in trace.ranks.values() if step in log.heads) if trace else 0


def _operations(plan: StepPlan, of_step: Trace | None, runs: Sequence[Run]) -> Iterator[StepOperations]:
    """Of each rank, from the run in which they were recorded."""
    for run in runs:
        trace = _trace(run)
        with_record = trace_of_step(trace, plan.step) if trace is not None else None
        for rank, step in recorded_steps(run.recording.directory):
            record = read_ops(run.recording.directory, rank, step) if step == plan.step else None
            if record is None:
                continue
            roots = root_of(with_record, rank), root_of(of_step, rank)
            yield StepOperations(
                rank=rank,
                num_by_phase=Counter(operation.phase for operation in record.operations),
                problem=record.problem,
                non_finite=find_non_finite(record),
                is_faithful=all(roots) and is_faithful(roots[0] or b"", roots[1] or b""),
            )


def _trace(run: Run) -> Trace | None:
    return read_trace(run.recording.directory) if run.recording.ranks else None


def _trace_of_step(repeated: Repeated) -> Trace | None:
    trace = _trace(repeated.runs[0]) if repeated.runs else None
    return None if trace is None else trace_of_step(trace, repeated.plan.step)


def _operations_directory(runs: Sequence[Run]) -> Path | None:
    return runs[1].recording.directory if len(runs) > 1 else None


def _record(directory: Path | None, rank: int, step: int) -> OpRecord | None:
    return None if directory is None else read_ops(directory, rank, step)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A step that was run again, and all that was found."""

    repeated: Repeated
    directory: Path
    other: OtherRun | None = None
    other_trace: OtherTrace | None = None
    """Of a whole run that was set against a trace."""
    bundle: Path | None = None
    """Where it was written; None where none was asked for."""
    bundle_needs: str = ""
    """The checkpoint that the bundle names; empty where it holds all that it needs."""
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""
    """The name of a signal; empty where it went to its end."""

    @property
    def next_command(self) -> NextCommand | None:
        """What to type next: of a step that ends in its middle its operations, of a run that has died what it says."""
        plan, runs = self.repeated.plan, self.repeated.runs
        if self.interrupted_by or plan.has_operations or not runs:
            return None
        if self.repeated.is_reproduced:
            is_broken = self.repeated.ending is not Ending.WHOLE
            return NextCommand("look closer", step_command(plan.run.directory, plan.step)) if is_broken else None
        return next_command(plan.run_spec, runs[0].recording)

    @property
    def exit_code(self) -> ExitCode:
        """That of a step which did not come out again; else, with another run, what the two are to each other."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.repeated.is_reproduced and self.other_trace is not None:
            return EXIT_CODES[self.other_trace.verdict.kind]
        if not self.repeated.is_reproduced or self.other is None:
            return self.repeated.exit_code
        if not self.other.repeated.is_reproduced:
            return self.other.repeated.exit_code
        verdict = self.other.verdict
        return ExitCode.INCOMPLETE_RECORDING if verdict is None else EXIT_CODES[verdict.kind]


def with_bundle(found: Reproduction, path: Path, *, refers_to_checkpoint: bool) -> Reproduction:
    """Write the step as a bundle, and return what was found with it.

    It holds all values of the step where it came out as it was recorded. BundleError where it cannot be written.
    """
    plan = found.repeated.plan
    again = found.repeated.runs[0].recording.directory if found.repeated.is_reproduced else None
    head = write_bundle_of(plan.run, plan.step, path, refers_to_checkpoint=refers_to_checkpoint, kept_by=again)
    return replace(found, bundle=path, bundle_needs=head.checkpoint.path if head.checkpoint else "")
