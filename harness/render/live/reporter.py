"""Live table of the running files and their GPUs on a terminal, with sentences that scroll above it.

    run's thread:   on_event ──(lines, Progress)──┐ under a lock, never waits for the terminal
    drawing thread:                               └──> Screen ──> terminal

A terminal may take nothing for minutes (Ctrl-S, a stalled ssh) or vanish: only the drawing thread waits for it, and
its first failure turns the display off.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.text import Text

from harness.process.clock import Clock
from harness.render.live.frame import FrameStyle, Picture, frame
from harness.render.live.screen import Line, Screen, terminal_size
from harness.render.run_text import Sentence, Tone, alive, head_lines, running_line, sentences
from harness.runner.events import DumpRequested, Event, RunFinished, RunStarted
from harness.runner.records.stats import RunState
from harness.runner.reporter import complain

IDLE_REDRAW_S = 1.0
"""The clock on the display moves this often when nothing happens."""
MIN_REDRAW_S = 0.15
CLOSE_S = 2.0


class LiveReporter:
    """Draws on `stream`, a terminal that understands cursor movements, until the run finishes or `close`.

    `size` gives (columns, lines); `say` is called once if the display fails and is switched off; `close_s` is how long
    the end of a run waits for a terminal that takes nothing.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        colour: bool,
        say: Callable[[str], None],
        size: Callable[[], tuple[int, int]] | None = None,
        close_s: float = CLOSE_S,
    ) -> None:
        self._clock = clock
        self._close_s = close_s
        self._say = say
        self._screen = Screen(stream, colour=colour, size=size or (lambda: terminal_size(stream)))
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._num_rows = 0
        self._picture: Picture | None = None
        self._off = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event, state: RunState) -> None:
        """Hand the drawing thread what there is to show."""
        if self._off or self._stop.is_set():
            return
        lines = _lines(event, state)
        picture = Picture(state.progress(), state.gpus, event.t, self._clock.monotonic_s())
        with self._lock:
            self._lines += lines
            self._picture = picture
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw_until_stopped, name="live display", daemon=True)
            self._thread.start()
        self._wake.set()
        if isinstance(event, RunFinished):
            self.close()

    def close(self) -> None:
        """Take the display off the terminal, its lines stay; gives up on a terminal that takes nothing."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(self._close_s)

    def _draw_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait(IDLE_REDRAW_S)
                self._wake.clear()
                self._draw()
                self._stop.wait(MIN_REDRAW_S)
            self._draw()
            self._screen.leave()
        except Exception as error:  # a closed terminal, our own bug: none is worth the run's results
            self._off = True
            with suppress(OSError, ValueError):
                self._screen.show_cursor()
            complain(self._say, "the live display", error)

    def _draw(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            picture = self._picture
        if picture is not None:
            now_t = picture.t + self._clock.monotonic_s() - picture.taken_s
            self._num_rows = max(self._num_rows, len(picture.progress.running))
            style = FrameStyle(*self._screen.size(), self._num_rows, self._screen.ascii_only)
            self._screen.draw(lines, frame(picture, now_t, style), style)


def _lines(event: Event, state: RunState) -> list[Line]:
    """Return the lines that stay on the terminal: the head, sentences on events, and a requested dump."""
    if isinstance(event, RunStarted):
        return [Text(line, style="bold" if index == 0 else "dim") for index, line in enumerate(head_lines(event))]
    if isinstance(event, DumpRequested):
        running = [running_line(attempt, event.t, state) for attempt in state.running.values()]
        return [Sentence(Tone.QUIET, "running", text) for text in running or [alive(state)]]
    return [said for said in sentences(event, state) if said.tone is not Tone.GOOD]
