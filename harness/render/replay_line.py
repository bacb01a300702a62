"""The current run of a replay in one redrawn line; lines about finished runs stay above it."""

from typing import TextIO

from rich.text import Text

from harness.bits.text import count, one_line
from harness.lab.experiments.launcher import run_of_all
from harness.process.clock import Clock
from harness.render.console import say
from harness.render.run_live import Drawing, FrameStyle, Screen


class ReplayLine(Drawing):
    """Draws on `stream`, a terminal, until `close`."""

    def __init__(self, stream: TextIO, clock: Clock, num_runs: int, *, colour: bool) -> None:
        super().__init__(Screen(stream, colour=colour), clock, "the display", say)
        self._num_runs = num_runs
        self._shown: tuple[str, int, float] | None = None
        """Name of the run that goes on, its number of steps, and when it began."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Show that a run starts."""
        title = run_of_all(number, self._num_runs, has_operations=has_operations)
        self._shown = (title, 0, self._clock.monotonic_s())
        self._wake_up()

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Show the progress of the run."""
        if self._shown:
            self._shown = (self._shown[0], num_steps, self._shown[2])

    def end(self, line: str) -> None:
        """Print the line about a finished run."""
        with self._lock:
            self._lines.append(Text(one_line(line)))
        self._shown = None
        self._wake_up()

    def _frame(self, width: int, height: int) -> tuple[list[Text], FrameStyle]:
        frame = []
        if shown := self._shown:
            title, num_steps, began_s = shown
            text = f"{title}   {count(num_steps, 'step')}   {self._clock.monotonic_s() - began_s:.0f} s"
            frame = [Text(text[: width - 1], style="bold")]
        return frame, FrameStyle(width, height, 1, self._screen.ascii_only)
