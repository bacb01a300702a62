"""Progress of a command's runs: lines on standard error, or one redrawn line on a terminal."""

import sys
from collections.abc import Mapping

from harness.bits.text import count, one_line
from harness.lab.experiments.launcher import Display, Run, run_of_all
from harness.process.clock import Clock
from harness.render.console import say

EVERY_S = 30.0
"""Seconds between two lines about one run."""


class RunLines:
    """Display of a command that runs one program after another.

    `title` is that of the next run; with `num_runs` each is titled by its number.
    """

    def __init__(self, num_runs: int = 0) -> None:
        self.title = ""
        self._num_runs = num_runs
        self._said_s = 0.0

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report that a run starts."""
        self._said_s = 0.0
        if self._num_runs:
            self.title = run_of_all(number, self._num_runs, has_operations=has_operations)
        say(f"{one_line(self.title)}{',' if has_operations else ''} begins")

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


def make_display(num_runs: int, clock: Clock, *, colour: bool, environ: Mapping[str, str]) -> Display:
    """Return the display of numbered runs that fits standard error."""
    if sys.stderr is None or not sys.stderr.isatty() or environ.get("TERM") == "dumb":
        return RunLines(num_runs)
    from harness.render.replay_line import ReplayLine

    return ReplayLine(sys.stderr, clock, num_runs, colour=colour)


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
