"""rich drawing into memory, and the one write per frame that brings it to the terminal.

One write, so that no frame is seen half drawn; and so that a broken pipe is ours to handle: rich itself would point
the process's stdout at /dev/null and exit.
"""

import io
import os
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from harness.bits.text import put
from harness.render.live.frame import FrameStyle
from harness.render.run_text import Sentence, Tone

FALLBACK_SIZE = (80, 24)
LABEL_WIDTH = 15
MIN_WRAP_WIDTH = 20

BEGIN_SYNC, END_SYNC = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know synchronised output show a frame whole; the others ignore this."""
ERASE_BELOW = "\x1b[J"
SHOW_CURSOR = "\x1b[?25h"

STYLES = {Tone.GOOD: "green", Tone.QUIET: "dim", Tone.WARNING: "yellow", Tone.BAD: "bold red"}

Line = Text | Sentence
"""Text that is printed above the frame for good."""


class Screen:
    """Lines that stay, and below them a frame that is replaced by the next.

    Its methods raise OSError or ValueError where the terminal is gone.
    """

    def __init__(self, stream: TextIO, *, colour: bool, size: Callable[[], tuple[int, int]]) -> None:
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
        self.size = size
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
            texts = [text for line in lines for text in _wrapped(line, self._console)]
            self._console.print(*texts, sep="\n", soft_wrap=True)  # and below them the frame before, once more
        self._live.refresh()
        # A terminal made narrower has wrapped the old frame: rich goes up by its lines as they were drawn.
        up = f"\x1b[{num_wrapped}A" if num_wrapped > 0 else ""
        self._write(BEGIN_SYNC + up + self._take() + ERASE_BELOW + END_SYNC)

    def leave(self) -> None:
        """Take the frame away and give the cursor back."""
        self._live.stop()
        self._write(self._take())

    def show_cursor(self) -> None:
        """Give the cursor back, whatever state the drawing is in."""
        self._write(SHOW_CURSOR)

    def _take(self) -> str:
        text = self._memory.getvalue()
        self._memory.seek(0)
        self._memory.truncate()
        return text

    def _write(self, text: str) -> None:
        put(self._stream, text)
        self._stream.flush()


def _wrapped(line: Line, console: Console) -> list[Text]:
    """A sentence wrapped between words to the right of its label; any other line as it is."""
    if isinstance(line, Text):
        return [line]
    room = max(MIN_WRAP_WIDTH, console.width - LABEL_WIDTH - 3)
    texts = Text(line.text).wrap(console, room)
    labels = [line.label, *[""] * (len(texts) - 1)]
    return [
        Text.assemble((f" {label:<{LABEL_WIDTH}} ", STYLES[line.tone]), text)
        for label, text in zip(labels, texts, strict=True)
    ]


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return (columns, lines) of the terminal of `stream`; a common size if it is unknown."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        return FALLBACK_SIZE
    return (columns or FALLBACK_SIZE[0], lines or FALLBACK_SIZE[1])
