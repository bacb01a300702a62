"""Progress of a replay's runs: lines on standard error, or one redrawn line on a terminal."""

import sys
from collections.abc import Mapping

from harness.bits.text import count
from harness.lab.experiments.run import Display, run_name, run_of_all
from harness.process.clock import Clock
from harness.render.console import say

EVERY_S = 30.0
"""Seconds between two lines about one run."""


class ReplayLines:
    """Display without a terminal."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._name = ""
        self._said_s = 0.0

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report that a run starts."""
        self._name, self._said_s = run_name(number, has_operations=has_operations), 0.0
        title = run_of_all(number, self._num_runs, has_operations=has_operations)
        say(f"{title}{',' if has_operations else ''} begins")

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Report the progress of a run."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            say(f"{self._name}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def end(self, line: str) -> None:
        """Report the end of a run."""
        say(line)

    def close(self) -> None:
        """Hold nothing."""


def make_display(num_runs: int, clock: Clock, *, colour: bool, environ: Mapping[str, str]) -> Display:
    """Return the display that fits standard error."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty() and environ.get("TERM") != "dumb"
    if not is_terminal:
        return ReplayLines(num_runs)
    from harness.render.live.replay_line import ReplayLine

    return ReplayLine(sys.stderr, clock, num_runs, colour=colour)
