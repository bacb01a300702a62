"""Runs that a command starts one after the other, each with a title of its own: lines on standard error."""

from harness.core.text import count, one_line
from harness.lab.experiments.run import Run
from harness.render.console import say

EVERY_S = 30.0
"""How often a run that goes on is worth a line."""


class RunLines:
    """The display of such a command. `title` is that of the run that begins next."""

    def __init__(self) -> None:
        self.title = ""
        self._said_s = 0.0

    def begin(self, number: int, *, has_operations: bool) -> None:
        """A run starts."""
        self._said_s = 0.0
        say(f"{one_line(self.title)} begins")

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """It goes on."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            say(f"{one_line(self.title)}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def ended(self, run: Run) -> None:
        """It has ended."""
        recording = run.recording
        line = f"{one_line(self.title)}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
        if not recording.is_complete:
            line += f", INCOMPLETE: {one_line(recording.problems[0].what)}"
        self.end(line)

    def end(self, line: str) -> None:
        """The same, said already."""
        say(line)

    def close(self) -> None:
        """No more runs."""


class SilentRuns:
    """The display of a command that says itself what goes on."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Nothing."""

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Nothing."""

    def end(self, line: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
