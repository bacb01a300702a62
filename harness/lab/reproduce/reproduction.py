"""Steps of a recorded run that are run again and compared with the recorded ones.

    options ─▶ StepPlan ─▶ runs ─▶ is each step the recorded one? what do its operations show? ─▶ Reproduction

What a run names is compared with the scenarios here before anything of it is used; what none of them names needs
--trust.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.redaction import REDACTED, redact_argv
from harness.lab.experiment.flat_config import flattened
from harness.lab.experiment.hints import NextCommand, next_command, step_command
from harness.lab.experiment.launcher import Display, LaunchContext, Run, Variant, open_launcher, record_variants
from harness.lab.experiment.preparation import OutDirectory, place_of
from harness.lab.experiment.recorded_run import RecordedRun, check_step, read_recorded_run, root_of, trace_of_step
from harness.lab.experiment.scenario import check_entries, override_of
from harness.lab.experiment.trust import check_run
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec
from harness.trace.diff import PLACED, diff, global_root
from harness.trace.ops import NonFinite, find_non_finite, is_faithful, read_ops, recorded_steps
from harness.trace.reader import Trace, excerpt, read_trace
from harness.trace.verdict import BY_WEIGHT, EXIT_CODES, Kind, Verdict


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """What a command line asks of something recorded that is run again."""

    subject: str
    """Directory of a recorded run."""
    step: int | None = None
    """Step that is run again; None for the whole run."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in a run of their own."""
    is_interactive: bool = False
    """Whether the step debugger is opened at that step."""
    commands: str | None = None
    """File from which the step debugger reads its commands; None for standard input."""
    against: str | None = None
    """Another run, with whose values the step debugger compares."""
    is_trusted: bool = False
    """Whether code and files that no scenario here names may be used."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE of --set, of sections that are free."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/reproductions`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""

    def __post_init__(self) -> None:
        of_step = {"--interactive": self.is_interactive, "--trace-ops": self.has_operations}
        if self.step is None and (given := [name for name, is_given in of_step.items() if is_given]):
            raise UsageError(f"{', '.join(given)} without --step", remedy=f"add --step K: --step K {given[0]}")
        for name, value in {"--commands": self.commands, "--against": self.against}.items():
            if value and not self.is_interactive:
                raise UsageError(f"{name} without --interactive", remedy=f"--step K --interactive {name} {value}")


REPRODUCTIONS = "reproductions"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step that can be run again."""

    run: RecordedRun
    step: int
    first: int
    """With which it begins: the nearest checkpoint's, or the first of the run."""
    run_spec: RunSpec
    """Of the steps `first` to `step`, the tensors of the last one kept."""
    is_from_checkpoint: bool = False
    """Whether it begins with a checkpoint, and not with the beginning of the run."""
    has_operations: bool = False


def plan_step(run: RecordedRun, step: int | None, options: ReproduceOptions) -> StepPlan:
    """Return the plan of a step; of all steps of the run where none is named.

    UsageError where the run has no such step, or an option cannot be used.
    """
    overrides = free_overrides(run, options.overrides)
    if step is None:
        last, start = max(run.trace.steps, default=0), None
    else:
        last, start = step, run.start_before(step)
    check_step(run.trace, last)
    return StepPlan(
        run=run,
        step=last,
        first=min(run.trace.steps, default=last) if start is None else start,
        run_spec=replace(run.spec_to(start or 0, overrides), last_step=last, keep=(last,)),
        is_from_checkpoint=start is not None,
        has_operations=options.has_operations,
    )


def named_run(invocation: Invocation, name: str, *, is_trusted: bool, is_other: bool = False) -> RecordedRun:
    """Read the recorded run in a directory, which is going to be run again.

    One to compare with may have another command than the one that was typed: its recorded words are run then.
    Raises UsageError where there is none, and where it would use what no scenario here names, without --trust.
    """
    directory = place_of(invocation.cwd, name)
    manifest = read_trace(directory).manifest if is_other and invocation.trailing else None
    if manifest is not None and manifest.argv != redact_argv(invocation.trailing):
        invocation = replace(invocation, trailing=())
    run = read_recorded_run(directory, invocation.trailing)
    check_run(run, invocation, is_trusted=is_trusted)
    if run.call is not None:
        check_entries(invocation)
    return run


def free_overrides(run: RecordedRun, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the overrides of --set for a recorded run: runtime settings, and secrets, which were not recorded."""
    values = dict(map(override_of, overrides))
    if run.call is None:
        if values:
            raise UsageError("--set for the run of a command", legal="nothing: a command has no runtime settings here")
        return {}
    recorded = flattened(run.call.config)
    for key in values:
        if key.partition(".")[0] not in run.call.runtime_sections and REDACTED not in recorded.get(key, ""):
            free = ", ".join(run.call.runtime_sections)
            what = f"--set {key}: a different value makes a different run"
            raise UsageError(what, legal=f"keys of {free}" if free else "nothing: it has no runtime settings")
    return values


# ----------------------------------------------------------------------------------------------------------- comparison


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
    """Of the recorded step, rank 0; empty where it stops in its middle."""
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


def compare_step(plan: StepPlan, runs: Sequence[Run]) -> Repeated:
    """What a step is to the recorded one, from the runs that have repeated it: without operations, then with them."""
    recorded, again = plan.run.trace, _trace(runs[0]) if runs else None
    if again is None:
        return Repeated(plan, tuple(runs), ())
    a, b = trace_of_step(recorded, plan.step), trace_of_step(again, plan.step)
    ending = Ending.WHOLE
    if plan.step not in recorded.steps and a is not None:
        ending = Ending.SAME_MIDDLE if _num_values(a, plan.step) == _num_values(b, plan.step) else Ending.GOES_ON
    return Repeated(
        plan=plan,
        runs=tuple(runs),
        verdicts=tuple(_verdicts(plan, recorded, again)),
        num_values=_num_values(a, plan.step),
        root=(global_root(recorded, plan.step) if plan.step in recorded.steps else None) or b"",
        ending=ending,
        operations=tuple(_operations(plan, b, runs[1:])),
    )


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
    """Whether a step is, as far as the beginning of it was recorded elsewhere, the same in every value of a rank."""
    if trace.ranks.keys() != beginning.ranks.keys():
        return False
    for rank in beginning.ranks:
        values = list(beginning.columns(step, rank).values())
        of_trace = list(trace.columns(step, rank).values())[: len(values)]
        both = ([value for value in each if value.scope in PLACED] for each in (of_trace, values))
        if next(both) != next(both):
            return False
    return True


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


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A step that was run again, and all that was found."""

    repeated: Repeated
    directory: Path
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
        """That of the comparison, unless a signal has ended it."""
        return ExitCode.INTERRUPTED if self.interrupted_by else self.repeated.exit_code


# ------------------------------------------------------------------------------------------------------------ the runs


async def reproduce(plan: StepPlan, out: OutDirectory, place: LaunchContext, display: Display) -> Reproduction:
    """Run the steps of a plan again, once more with operations where they are asked for, in directories below `out`.

    Raises UsageError where an entry refuses its run before the first step.
    """
    steps = f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"
    variants = [Variant(plan.run_spec, 1, f"repetition of {steps}")]
    if plan.has_operations:
        variants.append(
            Variant(replace(plan.run_spec, op_step=plan.step), 1, f"repetition of {steps}, with operations")
        )

    with open_launcher(place, display) as launcher:
        runs = await record_variants(launcher, variants, out)
        return Reproduction(compare_step(plan, runs), out.path, launcher.interrupted_by)
