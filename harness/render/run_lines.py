"""Progress of a command's runs, each with its own title: lines on standard error."""

from harness.bits.text import count, one_line
from harness.lab.experiments.run import Run
from harness.render.console import say

EVERY_S = 30.0
"""Seconds between two lines about one run."""


class RunLines:
    """Display of a command that runs one program after another. `title` is that of the next run."""

    def __init__(self) -> None:
        self.title = ""
        self._said_s = 0.0

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report that a run starts."""
        self._said_s = 0.0
        say(f"{one_line(self.title)} begins")

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Report the progress of a run."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            say(f"{one_line(self.title)}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def ended(self, run: Run) -> None:
        """Report the end of a run."""
        recording = run.recording
        line = f"{one_line(self.title)}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
        if not recording.is_complete:
            line += f", INCOMPLETE: {one_line(recording.problems[0].what)}"
        self.end(line)

    def end(self, line: str) -> None:
        """Report the end of a run with a finished line."""
        say(line)

    def close(self) -> None:
        """Hold nothing."""


class SilentRuns:
    """Display of a command that reports its runs itself."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report nothing."""

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Report nothing."""

    def end(self, line: str) -> None:
        """Report nothing."""

    def close(self) -> None:
        """Report nothing."""
