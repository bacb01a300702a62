"""One run that ends where a condition holds: what it is started with, the run, and how it has ended.

plan ─▶ run spec, watched by Breakpoints ─▶ one run ─▶ where it has ended ─▶ bundle

A condition that is met ends the run in the middle of its step. What was recorded of the step is kept, and is what the
bundle holds, with the checkpoint before it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.errors import BundleError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import one_line
from harness.lab.experiments.break_conditions import STOP, exit_code_of, read_report, with_conditions
from harness.lab.experiments.bundles.making import write_bundle_of
from harness.lab.experiments.hints import NextCommand, next_command
from harness.lab.experiments.launcher import LaunchContext, open_launcher, refuse
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.recorded_run import read_recorded_run
from harness.lab.experiments.run import Run, TitledDisplay
from harness.recording.conditions import DIVERGENCE, Condition, Stop
from harness.recording.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class StopPlan:
    """A run that ends where a condition holds."""

    run_spec: RunSpec
    conditions: tuple[Condition, ...]
    against: Path | None = None
    """The trace that the condition of a divergence means."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that has ended, at a condition or at its own end."""

    plan: StopPlan
    run: Run
    stop: Stop | None
    """None where no condition held."""
    directory: Path
    bundle: Path | None = None
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether a condition compared the run with a trace; the only one that does is that of a divergence."""
        return any(condition.word == DIVERGENCE for condition in self.plan.conditions)

    @property
    def next_command(self) -> NextCommand | None:
        """The next command; None if the run has come to its own end, or was interrupted."""
        return None if self.interrupted_by else next_command(self.plan.run_spec, self.run.recording, self.stop)

    @property
    def exit_code(self) -> ExitCode:
        """DIVERGED where it has; OK where another condition held, or none until the run had ended in order."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.stop is not None:
            return exit_code_of(self.stop)
        return ExitCode.OK if self.run.recording.is_complete else ExitCode.INCOMPLETE_RECORDING


async def record_until(plan: StopPlan, out: OutDirectory, place: LaunchContext, display: TitledDisplay) -> Stopped:
    """Carry out the run of a plan, in a directory below `out`.

    Raises UsageError where its entry refuses it, or where a condition names a value that its curve does not have.
    """
    report = out.path / STOP
    display.title = f"a run until {' or '.join(map(str, plan.conditions))}"
    with open_launcher(place, display) as session:
        run = await session.record(with_conditions(plan.run_spec, plan.conditions, report, plan.against), out.path)
        refuse(run, out)
        try:
            stop = read_report(report)
        except UsageError:
            out.give_back()
            raise
        display.ended(run)
        return Stopped(plan, run, stop, out.path, interrupted_by=session.interrupted_by)


def with_bundle(stopped: Stopped, path: Path | None = None, *, refers_to_checkpoint: bool = False) -> Stopped:
    """Write the bundle of the step in which a run has ended, and return the run with it; as it is where none held.

    Without a `path` it goes beside the run, and a note says why it could not be written. BundleError with one.
    """
    if stopped.stop is None or stopped.interrupted_by:
        return stopped
    if stopped.plan.run_spec.call is None:
        note = "a bundle holds a step of a scenario: a command has no checkpoints to begin from"
        return replace(stopped, notes=(note,))
    step = stopped.stop.step
    target = path or stopped.directory / f"step-{step}.rlb"
    run = read_recorded_run(stopped.run.recording.directory)
    try:
        write_bundle_of(run, step, target, refers_to_checkpoint=refers_to_checkpoint)
    except BundleError as error:
        if path is not None:
            raise
        return replace(stopped, notes=(f"there is no bundle: {one_line(error.what)}",))
    return replace(stopped, bundle=target)
