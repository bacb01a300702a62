"""A run of tests on a terminal: lines that stay, and below them a table of what runs that is drawn again and again.

    run's thread:   on_event ──(lines, Progress)──┐ under a lock, never waits for the terminal
    drawing thread:                               └──> Screen ──> terminal

A terminal may take nothing for minutes (Ctrl-S, a stalled ssh) or vanish: only the drawing thread waits for it, and
its first failure turns the display off. Each frame is one write, so that none is seen half drawn, and so that a broken
pipe is ours to handle: rich itself would point the process's stdout at /dev/null and exit.
"""

import io
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from harness.bits.text import count, one_line, put, ranges
from harness.process.clock import Clock
from harness.render.run_text import Sentence, Tone, alive, bare_test, head_lines, running_line, sentences, words
from harness.render.run_words import gpu_names, label
from harness.runner.events import DumpRequested, Event, RunFinished, RunStarted
from harness.runner.records.stats import Progress, Running, RunState
from harness.runner.reporter import complain
from harness.runner.units import Outcome

IDLE_REDRAW_S = 1.0
"""The clock on the display moves this often when nothing happens."""
MIN_REDRAW_S = 0.15
CLOSE_S = 2.0
FALLBACK_SIZE = (80, 24)
LABEL_WIDTH = 15
MIN_WRAP_WIDTH = 20
GPUS_WIDTH, DONE_WIDTH, SINCE_WIDTH, GAP = 10, 5, 7, 2
MIN_TEST_WIDTH = 16
TIMES_WIDTH = 21
SLOW_FACTOR = 3.0
"""A unit's time turns yellow when it runs for this many times what was expected, and for a minute at least."""
SLOW_AT_LEAST_S = 60.0
BEGIN_SYNC, END_SYNC = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know synchronised output show a frame whole; the others ignore this."""
ERASE_BELOW = "\x1b[J"
SHOW_CURSOR = "\x1b[?25h"
STYLES = {Tone.GOOD: "green", Tone.QUIET: "dim", Tone.WARNING: "yellow", Tone.BAD: "bold red"}
Line = Text | Sentence
"""Text that is printed above the frame for good."""


@dataclass(frozen=True, slots=True)
class FrameStyle:
    """The terminal a frame is for."""

    width: int
    height: int
    num_rows: int
    """Rows the table has at least, empty ones included."""
    ascii_only: bool = False


class Screen:
    """Lines that stay, and below them a frame that is replaced by the next.

    Its methods raise OSError or ValueError where the terminal is gone.
    """

    def __init__(self, stream: TextIO, *, colour: bool, size: Callable[[], tuple[int, int]] | None = None) -> None:
        self._stream = stream
        self._memory = io.StringIO()
        self._console = Console(
            file=self._memory,
            force_terminal=True,
            color_system="standard" if colour else None,
            width=FALLBACK_SIZE[0],
            height=FALLBACK_SIZE[1],
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown: list[Text] = []
        self.size = size or self._terminal_size
        # Without colour the parts of the bar are told apart by their characters.
        self.ascii_only = not colour or not (stream.encoding or "utf-8").lower().startswith("utf")

    def draw(self, lines: list[Line], frame_lines: list[Text], style: FrameStyle) -> None:
        """Print `lines` for good, and the frame below them in place of the one before."""
        self._console.size = (style.width, style.height)
        num_wrapped = sum(-(-line.cell_len // style.width) - 1 for line in self._shown if line.plain)
        self._shown = frame_lines
        self._live.start()
        self._live.update(Group(*frame_lines))
        if lines:
            texts = [text for line in lines for text in self._wrapped(line)]
            self._console.print(*texts, sep="\n", soft_wrap=True)  # and below them the frame before, once more
        self._live.refresh()
        # A terminal made narrower has wrapped the old frame: rich goes up by its lines as they were drawn.
        up = f"\x1b[{num_wrapped}A" if num_wrapped > 0 else ""
        self.write(BEGIN_SYNC + up + self._take() + ERASE_BELOW + END_SYNC)

    def leave(self) -> None:
        """Take the frame away and give the cursor back."""
        self._live.stop()
        self.write(self._take())

    def write(self, text: str) -> None:
        """Write text as it is."""
        put(self._stream, text)
        self._stream.flush()

    def _take(self) -> str:
        text = self._memory.getvalue()
        self._memory.seek(0)
        self._memory.truncate()
        return text

    def _wrapped(self, line: Line) -> list[Text]:
        """A sentence wrapped between words to the right of its label; any other line as it is."""
        if isinstance(line, Text):
            return [line]
        texts = Text(line.text).wrap(self._console, max(MIN_WRAP_WIDTH, self._console.width - LABEL_WIDTH - 3))
        labels = [line.label, *[""] * (len(texts) - 1)]
        style = STYLES[line.tone]
        return [
            Text.assemble((f" {label:<{LABEL_WIDTH}} ", style), text) for label, text in zip(labels, texts, strict=True)
        ]

    def _terminal_size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return FALLBACK_SIZE
        return (columns or FALLBACK_SIZE[0], lines or FALLBACK_SIZE[1])


class Drawing(ABC):
    """A display on a terminal, drawn by a thread of its own.

    `name` is that of the display in the line that `say` is given once if the display fails and is switched off.
    """

    def __init__(
        self, screen: Screen, clock: Clock, name: str, say: Callable[[str], None], *, close_s: float = CLOSE_S
    ) -> None:
        self._screen = screen
        self._clock = clock
        self._name = name
        self._say = say
        self._close_s = close_s
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._is_off = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _frame(self, width: int, height: int) -> tuple[list[Text], FrameStyle]:
        """Return the frame as it is now."""

    def close(self) -> None:
        """Take the display off the terminal, its lines stay; gives up on a terminal that takes nothing."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(self._close_s)

    def _wake_up(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw_until_stopped, name=self._name, daemon=True)
            self._thread.start()
        self._wake.set()

    def _draw_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait(IDLE_REDRAW_S)
                self._wake.clear()
                self._draw()
                self._stop.wait(MIN_REDRAW_S)
            self._draw()
            self._screen.leave()
        except Exception as error:  # a closed terminal, our own bug: none is worth the results
            self._is_off = True
            with suppress(OSError, ValueError):
                self._screen.write(SHOW_CURSOR)
            complain(self._say, self._name, error)

    def _draw(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        frame_lines, style = self._frame(*self._screen.size())
        self._screen.draw(lines, frame_lines, style)


class LiveReporter(Drawing):
    """Draws on `stream`, a terminal that understands cursor movements, until the run finishes or `close`."""

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        colour: bool,
        say: Callable[[str], None],
        close_s: float = CLOSE_S,
    ) -> None:
        super().__init__(Screen(stream, colour=colour), clock, "the live display", say, close_s=close_s)
        self._num_rows = 0
        self._picture = Picture(RunState().progress(), (), 0.0, clock.monotonic_s())

    def on_event(self, event: Event, state: RunState) -> None:
        """Hand the drawing thread what there is to show."""
        if self._is_off or self._stop.is_set():
            return
        lines = _lines(event, state)
        picture = Picture(state.progress(), state.gpus, event.t, self._clock.monotonic_s())
        with self._lock:
            self._lines += lines
            self._picture = picture
        self._wake_up()
        if isinstance(event, RunFinished):
            self.close()

    def _frame(self, width: int, height: int) -> tuple[list[Text], FrameStyle]:
        picture = self._picture
        now_t = picture.t + self._clock.monotonic_s() - picture.taken_s
        self._num_rows = max(self._num_rows, len(picture.progress.running))
        style = FrameStyle(width, height, self._num_rows, self._screen.ascii_only)
        return frame(picture, now_t, style), style


def _lines(event: Event, state: RunState) -> list[Line]:
    """Return the lines that stay on the terminal: the head, sentences on events, and a requested dump."""
    if isinstance(event, RunStarted):
        return [Text(line, style="bold" if index == 0 else "dim") for index, line in enumerate(head_lines(event))]
    if isinstance(event, DumpRequested):
        running = [running_line(attempt, event.t, state) for attempt in state.running.values()]
        return [Sentence(Tone.QUIET, "running", text) for text in running or [alive(state)]]
    return [said for said in sentences(event, state) if said.tone is not Tone.GOOD]


# ---- one frame: a pure function of a picture, the time and the terminal


@dataclass(frozen=True, slots=True)
class Picture:
    """Content of a frame: the run's progress at `t`, taken at `taken_s` of the clock."""

    progress: Progress
    gpus: tuple[str, ...]
    t: float
    taken_s: float


def frame(picture: Picture, now_t: float, style: FrameStyle) -> list[Text]:
    """The lines of one frame, each shorter than the terminal is wide, all of them fewer than it has lines.

    Columns depend on the width alone, rows keep their order while their units run, and the frame does not become
    shorter again: nothing jumps.
    """
    progress = picture.progress
    space = style.width - 1
    if not progress.num_units:
        files = f": {progress.num_collect_done} of {count(progress.num_collect_total, 'file')}"
        done = files if progress.num_collect_total else ""
        lines = [Text(f" collecting{done}, {_clock_time(now_t)}", style="dim", no_wrap=True, overflow="crop")]
    else:
        room = max(1, style.height - 6)
        attempts = sorted(progress.running, key=lambda attempt: (attempt.slot, attempt.started_t))
        names = gpu_names(picture.gpus)
        rows = [_row(attempt, now_t, names, space, style) for attempt in attempts[:room]]
        if len(attempts) > room:
            rows[-1] = Text(f" and {len(attempts) - room + 1} more", style="dim")
        rows += [Text()] * (min(style.num_rows, room) - len(rows))
        head = _columns(("GPUs", "file", "test", "tests", "since"), ("dim",) * 5, space, style)
        lines = [Text(), head, *rows, Text(), _bar(progress, now_t, space, style.ascii_only), _counts(progress, space)]
    for line in lines:
        line.truncate(space)
    return lines[-max(1, style.height - 1) :]


def _row(attempt: Running, now_t: float, names: dict[str, str], space: int, style: FrameStyle) -> Text:
    gpus = ranges([names.get(gpu_id, gpu_id) for gpu_id in attempt.gpu_ids])
    ran_s = now_t - attempt.started_t
    slow = ran_s > max(SLOW_AT_LEAST_S, SLOW_FACTOR * attempt.expected_s)
    name, bracket, parameters = bare_test(attempt).partition("[")
    test = one_line(name.rpartition("::")[2] + bracket + parameters)  # there is no room for its class
    if attempt.terminating:
        test = f"terminating: {words(attempt.terminating)}"
        test = test if len(test) <= _widths(space)[2] else "terminating"
    done = str(attempt.num_tests_done or "")
    texts = (f"gpu {gpus}" if gpus else "cpu", one_line(attempt.path), test, done, _clock_time(ran_s))
    styles = ("cyan", "", "yellow" if attempt.terminating else "dim", "dim", "yellow" if slow else "")
    return _columns(texts, styles, space, style)


def _widths(space: int) -> tuple[int, int, int, int, int]:
    """Widths in cells of the columns GPUs, file, test, tests done, since; 0 for one that is left out."""
    rest = space - 1 - GPUS_WIDTH - DONE_WIDTH - SINCE_WIDTH - 4 * GAP
    test = rest * 2 // 5
    if test >= MIN_TEST_WIDTH:
        return GPUS_WIDTH, rest - test, test, DONE_WIDTH, SINCE_WIDTH
    return GPUS_WIDTH, max(1, space - 1 - GPUS_WIDTH - SINCE_WIDTH - 2 * GAP), 0, 0, SINCE_WIDTH


def _columns(texts: tuple[str, ...], styles: tuple[str, ...], space: int, style: FrameStyle) -> Text:
    """One line: numbers to the right, a long path cut on its left, anything else on its right."""
    line = Text(" ", no_wrap=True, overflow="crop")
    for index, (text, width, tone) in enumerate(zip(texts, _widths(space), styles, strict=True)):
        if width:
            cut = _cut(text, width, "..." if style.ascii_only else "…", keep_end=index == 1)
            padded = " " * (width - cell_len(cut)) + cut if index > 2 else set_cell_size(cut, width)
            line.append(padded + " " * GAP, style=tone)
    line.rstrip()
    return line


def _cut(text: str, width: int, ellipsis: str, *, keep_end: bool) -> str:
    if cell_len(text) <= width:
        return text
    room = max(0, width - len(ellipsis))
    if not keep_end:
        return set_cell_size(text, room).rstrip() + ellipsis[:width]
    while cell_len(text) > room:
        text = text[1:]
    return ellipsis[:width] + text


def _bar(progress: Progress, now_t: float, space: int, ascii_only: bool) -> Text:
    """How many units are done, coloured by how they ended, then those that run, with the time beside it."""
    left_s = progress.remaining_s(now_t)
    beside = _clock_time(now_t) + (f", {_clock_time(left_s)} left" if left_s is not None and left_s >= 1 else "")
    width = max(0, space - TIMES_WIDTH - 1)
    num_bad = sum(number for outcome, number in progress.outcomes.items() if outcome.is_failure)
    num_bad -= progress.num_accepted
    num_not = progress.outcomes.get(Outcome.NOT_RUN, 0) + progress.outcomes.get(Outcome.INTERRUPTED, 0)
    parts = (
        (progress.num_done - num_bad - num_not, "green", "#"),
        (num_bad, "red", "!"),
        (num_not, "yellow", "-"),
        (len(progress.running), "cyan", "="),
        (progress.num_queued, "bright_black", "."),
    )
    line = Text(" ", no_wrap=True, overflow="crop")
    reached = drawn = 0
    for number, style, character in parts:
        reached += number
        cells = width * reached // max(1, progress.num_units) - drawn
        drawn += cells
        line.append((character if ascii_only else "━") * cells, style=style)
    line.append(beside.rjust(TIMES_WIDTH))
    return line


def _counts(progress: Progress, space: int) -> Text:
    """Counts in a row, each outcome by its name; what does not fit is left out from the right."""
    outcomes = progress.outcomes
    pieces = [(f"{progress.num_done}/{progress.num_units}", "bold")]
    for outcome in sorted(outcomes, key=lambda outcome: (not outcome.is_failure, list(Outcome).index(outcome))):
        style = "bold red" if outcome.is_failure else "green" if outcome is Outcome.PASSED else "yellow"
        pieces.append((f"{outcomes[outcome]} {label(outcome).lower()}", style))
    pieces += [(f"{len(progress.running)} running", "cyan"), (f"{progress.num_queued} queued", "dim")]
    if progress.num_gpus:
        pieces.append((f"{progress.num_gpus_leased}/{progress.num_gpus} GPUs", "dim"))
    line = Text("", no_wrap=True, overflow="crop")
    for text, style in pieces:
        if line.cell_len + len(text) + GAP > space:
            break
        line.append(" " * (GAP if line.plain else 1) + text, style=style)
    return line


def _clock_time(seconds: float) -> str:
    """1:02 or 1:01:02."""
    minutes, whole = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"
