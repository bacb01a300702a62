"""What a recorded run, or one step of it, is run again with: checked before anything is started.

RUN, K ─▶ run spec of its steps from the nearest checkpoint to K ─▶ one run, with --trace-ops one more with operations
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import REDACTED, redact_argv
from harness.lab.experiments.break_conditions import conditions_of
from harness.lab.experiments.flat_config import flattened
from harness.lab.experiments.launcher import check_program
from harness.lab.experiments.out_directory import place_of
from harness.lab.experiments.recorded_run import RecordedRun, read_recorded_run
from harness.lab.experiments.scenario_spec import check_entries, override_of
from harness.lab.experiments.step_traces import check_step
from harness.lab.experiments.stopped_run import StopPlan
from harness.lab.experiments.trust import check_run
from harness.lab.reproduce.options import ReproduceOptions
from harness.process.invocation import Invocation
from harness.recording.conditions import refuse_unknown, unknown_names
from harness.recording.run_spec import RunSpec
from harness.trace.reader import read_trace

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
