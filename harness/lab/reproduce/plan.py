"""Options of `rlharness reproduce`, and which of them go together."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import REDACTED, redact_argv
from harness.lab.experiments.flat_config import flattened
from harness.lab.experiments.launcher import check_program
from harness.lab.experiments.preparation import place_of
from harness.lab.experiments.recorded_kind import RecordedKind
from harness.lab.experiments.recorded_run import RecordedRun, check_step, read_recorded_run
from harness.lab.experiments.scenario_spec import check_entries, override_of
from harness.lab.experiments.single_run import StopPlan, conditions_of
from harness.lab.experiments.trust import check_run
from harness.process.invocation import Invocation
from harness.recording.conditions import refuse_unknown, unknown_names
from harness.recording.run_spec import RunSpec
from harness.trace.reader import read_trace


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """What a command line asks of something recorded that is run again."""

    subject: str
    """Directory of a recorded run, or a bundle."""
    step: int | None = None
    """Step that is run again; None for the whole run, of a bundle for its own."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in a run of their own."""
    is_interactive: bool = False
    """Whether the step debugger is opened at that step."""
    commands: str | None = None
    """File from which the step debugger reads its commands; None for standard input."""
    against: str | None = None
    """Another run: its step is run again too; its trace, where the whole run is."""
    bundle: str | None = None
    """File in which the bundle of the step is written."""
    refers_to_checkpoint: bool = False
    """Whether the bundle names its checkpoint in place of holding it."""
    break_on: tuple[str, ...] = ()
    """Conditions of --break-on."""
    until: tuple[str, ...] = ()
    """Comparisons of --until."""
    is_trusted: bool = False
    """Whether code and files that no scenario here names may be used."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE of --set, of sections that are free."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/reproductions`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""

    @property
    def has_condition(self) -> bool:
        """Whether the run ends where a condition holds."""
        return bool(self.break_on or self.until)


OF_A_RUN = {
    "--step": "step",
    "--interactive": "is_interactive",
    "--commands": "commands",
    "--against": "against",
    "--bundle": "bundle",
    "--reference-checkpoint": "refers_to_checkpoint",
    "--break-on": "break_on",
    "--until": "until",
}
"""Options that a bundle leaves no room for, and the field that holds each."""
OUTSIDE_THE_DEBUGGER = {
    "--bundle": "bundle",
    "--reference-checkpoint": "refers_to_checkpoint",
    "--break-on": "break_on",
    "--until": "until",
    "--timeout": "timeout_s",
}
"""Options that the step debugger has no use for, and the field that holds each."""


def check_options(options: ReproduceOptions, kind: RecordedKind) -> None:
    """Refuse options that mean nothing beside each other, or for what is run again, with a UsageError."""
    if kind is RecordedKind.BUNDLE:
        _refuse(
            options,
            OF_A_RUN,
            "with a bundle",
            legal="--trace-ops, --set, --timeout, --out, --trust, --json, --color",
            remedy="leave it out: a bundle holds one step of one run",
        )
    elif options.is_interactive:
        if options.step is None:
            raise UsageError(
                "--interactive without --step",
                legal="--step K --interactive",
                remedy="name the step at which the debugger opens",
            )
        _refuse(
            options,
            OUTSIDE_THE_DEBUGGER,
            "with --interactive",
            legal="--step, --against, --trace-ops, --set of a free section, --commands, --out, --trust, --json",
            remedy="leave it out; the command break stops where something is recorded",
        )
    elif options.commands is not None:
        raise UsageError(
            "--commands without --interactive", legal="--interactive --commands FILE", remedy="add --interactive"
        )
    elif options.has_operations and options.has_condition:
        raise UsageError(
            "--trace-ops with a condition",
            legal="one run, which stops when the condition holds",
            remedy="inspect the bundle that it writes: rlharness reproduce FILE --trace-ops",
        )
    elif options.has_operations and options.step is None:
        raise UsageError(
            "--trace-ops without --step", legal="--step K --trace-ops", remedy="name the step to look into"
        )
    elif options.refers_to_checkpoint and options.bundle is None and not options.has_condition:
        raise UsageError(
            "--reference-checkpoint without a bundle",
            legal="--bundle FILE --reference-checkpoint",
            remedy="name the bundle to write, or omit the option",
        )


def _refuse(options: ReproduceOptions, names: dict[str, str], where: str, *, legal: str, remedy: str) -> None:
    """UsageError for those of the named options that were given."""
    defaults = {field.name: field.default for field in fields(options)}
    given = [name for name, field in names.items() if getattr(options, field) != defaults[field]]
    if given:
        raise UsageError(f"{', '.join(given)} {where}", legal=legal, remedy=remedy)


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
    passed_over: tuple[str, ...] = ()
    """Damaged checkpoints that were nearer, each with what is wrong with it."""
    has_operations: bool = False
    timeout_s: float = inf

    @property
    def with_operations(self) -> RunSpec:
        """The same once more, with the operations of the step."""
        return replace(self.run_spec, op_step=self.step)


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
        passed_over=() if step is None else run.passed_over(step),
        has_operations=options.has_operations,
        timeout_s=options.timeout_s,
    )


def plan_stop(run: RecordedRun, invocation: Invocation, options: ReproduceOptions) -> StopPlan:
    """Return the plan of a run, or of its one step that was named, which ends where a condition holds.

    UsageError and TraceError for options that cannot be used.
    """
    conditions = conditions_of(options.break_on, options.until)
    if run.trace.curve:
        known = {name for point in run.trace.curve for name in point.values}
        refuse_unknown(unknown_names(conditions, known), known)
    other = read_trace(place_of(invocation.cwd, options.against)) if options.against else run.trace
    if options.step is not None:
        run_spec = plan_step(run, options.step, options).run_spec
    else:
        run_spec = replace(run.spec_to(0, free_overrides(run, options.overrides)), last_step=None)
    check_program(run_spec, invocation.cwd, invocation.environ)
    return StopPlan(run_spec, conditions, other.directory)


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
            raise UsageError(
                f"--set {key}: a different value makes a different run",
                legal=f"keys of {', '.join(run.call.runtime_sections)}"
                if run.call.runtime_sections
                else "nothing: it has no runtime settings",
                remedy="rlharness train records a different run, and rlharness diff shows the first difference",
            )
    return values
