"""Progress of a command's runs, as lines on standard error."""

from collections.abc import Callable

from harness.bits.text import count, one_line
from harness.lab.experiment.launcher import Run
from harness.render import console

EVERY_S = 30.0
"""Seconds between two lines about one run."""


class RunLines:
    """Display of a command that runs one program after another. `title` is that of the next run."""

    def __init__(self, *, say: Callable[[str], None] = console.say) -> None:
        self.title = ""
        self._say = say
        self._said_s = 0.0

    def begin(self) -> None:
        """Report that a run starts."""
        self._said_s = 0.0
        self._say(f"{one_line(self.title)} begins")

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Report the progress of a run."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            self._say(f"{one_line(self.title)}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def ended(self, run: Run) -> None:
        """Report the end of a run, with what was wrong with it, if anything was."""
        recording = run.recording
        line = f"{self.title}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
        self.end(line if recording.is_complete else f"{line}, INCOMPLETE: {recording.problems[0].what}")

    def end(self, line: str) -> None:
        """Report the end of a run with a finished line."""
        self._say(one_line(line, 1000))
