"""A run that was to end where a condition holds: what it was started with, and how it has ended."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.exit_codes import ExitCode
from harness.lab.experiments.break_conditions import exit_code_of
from harness.lab.experiments.hints import NextCommand, next_command
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.supervised_runs import Run
from harness.recording.conditions import Condition, Stop


@dataclass(frozen=True, slots=True)
class StopPlan:
    """A run that ends where a condition holds."""

    envelope: Envelope
    program: str
    """The path of the program."""
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
    def next_command(self) -> NextCommand | None:
        """What to type next; None where the run has come to its own end, or somebody has ended it."""
        return None if self.interrupted_by else next_command(self.plan.envelope, self.run.recording, self.stop)

    @property
    def exit_code(self) -> ExitCode:
        """DIVERGED where it has; OK where another condition held, or none until the run had ended in order."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.stop is not None:
            return exit_code_of(self.stop)
        return ExitCode.OK if self.run.recording.is_whole else ExitCode.INCOMPLETE_RECORDING
