"""One recorded run that has ended, and the display of active runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.lab.experiments.recording_result import Recording

OUTPUT = "output.log"


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run that has ended."""

    number: int
    """From 1 on."""
    has_operations: bool
    """Whether it was run once more than the others, for the operations of a step."""
    recording: Recording
    duration_s: float

    @property
    def name(self) -> str:
        """As a person reads it."""
        return run_name(self.number, has_operations=self.has_operations)

    @property
    def output(self) -> Path:
        """What it printed."""
        return self.recording.directory / OUTPUT


def run_name(number: int, *, has_operations: bool) -> str:
    """run 1, run 1 with operations."""
    return f"run {number} with operations" if has_operations else f"run {number}"


def run_of_all(number: int, num_runs: int, *, has_operations: bool) -> str:
    """run 1 of 2; run 1 of 2, with operations; run 3, of one more than were planned."""
    return (
        f"run {number}"
        + (f" of {num_runs}" if number <= num_runs else "")
        + (", with operations" if has_operations else "")
    )


class Display(Protocol):
    """Shows active runs."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """A run starts."""

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Show the progress of the run."""

    def end(self, line: str) -> None:
        """It has ended; `line` says how."""

    def close(self) -> None:
        """No more runs."""


class TitledDisplay(Display, Protocol):
    """Shows runs of which each has a title of its own."""

    title: str
    """Title of the run that begins next."""

    def ended(self, run: Run) -> None:
        """Show how the run has ended."""
