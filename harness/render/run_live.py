"""A run of tests on a terminal: lines that stay, and below them a bar and the running files, drawn again and again.

A terminal may take nothing for minutes (Ctrl-S, a stalled ssh) or vanish: only the drawing thread writes to it, and its
first failure turns the display off.
"""

import io
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.process.clock import Clock
from harness.render.run_text import Sentence, Tone, alive, head_lines, running_line, sentences
from harness.runner.events import DumpRequested, Event, RunFinished, RunStarted
from harness.runner.records.stats import RunState
from harness.runner.reporter import complain

IDLE_REDRAW_S = 1.0
"""The clock on the display moves this often when nothing happens."""
MIN_REDRAW_S = 0.15
CLOSE_S = 2.0
STYLES = {Tone.GOOD: "green", Tone.QUIET: "dim", Tone.WARNING: "yellow", Tone.BAD: "bold red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again: rich would point the process's stdout at /dev/null and exit."""
        raise BrokenPipeError("Broken pipe")


class LiveReporter:
    """Draws on `stream`, a terminal that understands cursor movements, until the run finishes or `close`."""

    def __init__(
        self, stream: TextIO, clock: Clock, *, colour: bool, say: Callable[[str], None], close_s: float = CLOSE_S
    ) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._console = _Console(
            file=stream,
            force_terminal=True,
            color_system="standard" if colour else None,
            no_color=not colour,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._clock, self._say, self._close_s = clock, say, close_s
        self._lock, self._wake, self._stop = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._draw, name="live display", daemon=True)
        self._lines: list[RenderableType] = []
        self._frame: Callable[[], RenderableType] = Text

    def on_event(self, event: Event, state: RunState) -> None:
        """Hand the drawing thread what there is to show."""
        if self._stop.is_set():
            return
        shown, began_s = state.snapshot(), self._clock.monotonic_s() - event.t
        with self._lock:
            self._lines += _lines(event, state)
            self._frame = lambda: frame(shown, self._clock.monotonic_s() - began_s)
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()
        if isinstance(event, RunFinished):
            self.close()

    def close(self) -> None:
        """Take the display off the terminal, its lines stay; gives up on a terminal that takes nothing."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(self._close_s)

    def _draw(self) -> None:
        try:
            with Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            ) as live:
                is_last = False
                while not is_last:
                    self._stop.wait(MIN_REDRAW_S)
                    self._wake.wait(IDLE_REDRAW_S)
                    self._wake.clear()
                    is_last = self._stop.is_set()
                    with self._lock:
                        lines, self._lines, shown = self._lines, [], self._frame()
                    live.update(shown)
                    if lines:  # they draw the frame again below them
                        self._console.print(Group(*lines))
                    else:
                        live.refresh()
        except Exception as error:  # a closed terminal, our own bug: none is worth the results
            self._stop.set()
            complain(self._say, "the live display", error)


def _lines(event: Event, state: RunState) -> list[RenderableType]:
    """Return the lines that stay on the terminal: the head, sentences on events, and a requested dump."""
    if isinstance(event, RunStarted):
        return [Text(line, style="bold" if index == 0 else "dim") for index, line in enumerate(head_lines(event))]
    found = [said for said in sentences(event, state) if said.tone is not Tone.GOOD]
    if isinstance(event, DumpRequested):
        running = [running_line(attempt, event.t, state.gpus) for attempt in state.running.values()]
        found = [Sentence(Tone.QUIET, "running", text) for text in running or [alive(state)]]
    table = Table.grid(padding=(0, 1))
    table.add_column(width=15)
    for said in found:
        table.add_row(Text(said.label, STYLES[said.tone]), said.text)
    return [table] if found else []


def frame(state: RunState, now_t: float) -> RenderableType:
    """Return the bar, the counts, and a line for each running file."""
    left_s = state.remaining_s(now_t)
    left = f", {timedelta(seconds=int(left_s))} left" if left_s is not None and left_s >= 1 else ""
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    done = ProgressBar(total=len(state.units), completed=state.num_done)
    bar.add_row(done, f"{timedelta(seconds=int(now_t))}{left}")
    running = sorted(state.running.values(), key=lambda attempt: (attempt.slot, attempt.started_t))
    lines = [alive(state), *(running_line(attempt, now_t, state.gpus) for attempt in running)]
    return Group("", bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
