"""Progress of a command's runs, as lines on standard error."""

from collections.abc import Callable

from harness.bits.text import count, one_line
from harness.lab.experiment.launcher import Run, run_of_all
from harness.render import console

EVERY_S = 30.0
"""Seconds between two lines about one run."""


class RunLines:
    """Display of a command that runs one program after another.

    `title` is that of the next run; with `num_runs` each is titled by its number.
    """

    def __init__(self, num_runs: int = 0, *, say: Callable[[str], None] = console.say) -> None:
        self.title = ""
        self._num_runs = num_runs
        self._say = say
        self._said_s = 0.0

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report that a run starts."""
        self._said_s = 0.0
        if self._num_runs:
            self.title = run_of_all(number, self._num_runs, has_operations=has_operations)
        self._say(f"{one_line(self.title)}{',' if has_operations else ''} begins")

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Report the progress of a run."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            self._say(f"{one_line(self.title)}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def ended(self, run: Run) -> None:
        """Report the end of a run."""
        self.end(run_line(run, self.title))

    def end(self, line: str) -> None:
        """Report the end of a run with a finished line."""
        self._say(line)

    def close(self) -> None:
        """Hold nothing."""


def run_line(run: Run, title: str = "") -> str:
    """run 1: 40 steps in 12.3 s; with what was wrong with it, if anything was."""
    recording = run.recording
    line = f"{one_line(title or run.name)}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
    return line if recording.is_complete else f"{line}, INCOMPLETE: {one_line(recording.problems[0].what)}"
