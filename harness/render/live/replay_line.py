"""The current run of a replay in one redrawn line; lines about finished runs stay above it.

As with the display of tests, only a thread of its own waits for the terminal, and its first failure turns it off.
"""

import threading
from contextlib import suppress
from typing import TextIO

from rich.text import Text

from harness.bits.text import count, one_line
from harness.lab.experiments.launcher import run_of_all
from harness.process.clock import Clock
from harness.render.console import say
from harness.render.live.frame import FrameStyle
from harness.render.live.screen import Line, Screen, terminal_size
from harness.runner.reporter import complain

REDRAW_S = 0.5
CLOSE_S = 2.0


class ReplayLine:
    """Draws on `stream`, a terminal, until `close`."""

    def __init__(self, stream: TextIO, clock: Clock, num_runs: int, *, colour: bool) -> None:
        self._screen = Screen(stream, colour=colour, size=lambda: terminal_size(stream))
        self._clock = clock
        self._num_runs = num_runs
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._name = ""
        self._num_steps = 0
        self._began_s = 0.0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Show that a run starts."""
        with self._lock:
            self._name = run_of_all(number, self._num_runs, has_operations=has_operations)
            self._num_steps, self._began_s = 0, self._clock.monotonic_s()
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw_until_stopped, name="replay display", daemon=True)
            self._thread.start()
        self._wake.set()

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Show the progress of the run."""
        with self._lock:
            self._num_steps = num_steps

    def end(self, line: str) -> None:
        """Print the line about a finished run."""
        with self._lock:
            self._lines.append(Text(one_line(line)))
            self._name = ""
        self._wake.set()

    def close(self) -> None:
        """Take the line off the terminal; gives up on a terminal that takes nothing."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _draw_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait(REDRAW_S)
                self._wake.clear()
                self._draw()
            self._draw()
            self._screen.leave()
        except Exception as error:  # a closed terminal, our own bug: none is worth the runs
            with suppress(OSError, ValueError):
                self._screen.show_cursor()
            complain(say, "the display", error)

    def _draw(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            elapsed_s = self._clock.monotonic_s() - self._began_s
            text = f"{self._name}   {count(self._num_steps, 'step')}   {elapsed_s:.0f} s"
            is_running = bool(self._name)
        width, height = self._screen.size()
        frame = [Text(text[: width - 1], style="bold")] if is_running else []
        self._screen.draw(lines, frame, FrameStyle(width, height, 1, self._screen.ascii_only))
