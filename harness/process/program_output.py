"""Bringing a unit's kept output to the screen: in pieces, never whole in memory, and harmless to the terminal.

output.log holds whatever the tests wrote: 200 MB of it, bytes that are no text, sequences that retitle the window,
move the cursor over what was said before, or ask the terminal to type something back. Colours pass; the rest is
dropped where it only moves things, and made visible where it is no known sequence.
"""

import codecs
import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from harness.bits.files import MALFORMED
from harness.bits.text import escape, one_line
from harness.process.growing_file import read_end

MAX_SHOWN_BYTES = 10_000_000
CHUNK_BYTES = 1 << 16
LINE_SEARCH_BYTES = 4096
"""Largest distance by which a cut moves to fall between lines."""
MAX_SEQUENCE = 4096
RESET = "\x1b[0m"
TAIL_LINES = 15
TAIL_BYTES = 16_384
MAX_INDENT = 24

_CSI = r"\x1b\[[0-?]{0,64}[ -/]{0,8}"
_STRING = rf"\x1b[\]PX^_][^\x07\x1b\n]{{0,{MAX_SEQUENCE}}}"
_SHORT = r"\x1b[ -/]{0,4}"
_SEQUENCE = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,64}m)"
    rf"|(?P<moves>{_CSI}[@-~]|{_STRING}(?:\x07|\x1b\\)|{_SHORT}[0-OQ-WYZ\\`-~])"
    r"|(?P<newline>\r\n?)"
    "|(?P<control>[\x00-\x08\x0b-\x1f\x7f-\x9f])"
)
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}\x1b?|{_SHORT}|\r)\Z")


class OutputFilter:
    """Turns a stream of bytes into text that a terminal may be given; pieces may be cut anywhere."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """The text of `data`, less a sequence at its end that the next piece may complete."""
        text = self._held + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text, max(0, len(text) - MAX_SEQUENCE - 16))
        cut = unfinished.start() if unfinished else len(text)
        self._held = text[cut:]
        return _SEQUENCE.sub(self._replace, text[:cut])

    def finish(self) -> str:
        """What was held back, and the end of any colour."""
        text = _SEQUENCE.sub(self._replace, self._held + self._decoder.decode(b"", final=True))
        self._held = ""
        return text + (RESET if self._coloured else "")

    def _replace(self, match: re.Match[str]) -> str:
        kind, found = match.lastgroup, match.group()
        if kind == "colour" and self._colour:
            self._coloured = True
            return found
        if kind == "newline":
            return "\n"
        return escape(found) if kind == "control" else ""


def show_file(
    file: BinaryIO, name: str, write: Callable[[str], None], *, colour: bool, cap_bytes: int = MAX_SHOWN_BYTES
) -> None:
    """Give `write` the file in pieces, ending with a newline; beyond `cap_bytes` its first and its last half.

    `name` is where a person finds all of it. Raises OSError where the file cannot be read, and what `write` raises.
    """
    size = os.fstat(file.fileno()).st_size
    if size <= cap_bytes:
        _show_span(file, 0, size, write, colour)
        return
    head_end, tail_start = _cuts(file, size, cap_bytes)
    _show_span(file, 0, head_end, write, colour)
    left_out_mb = (tail_start - head_end) / 1e6
    write(f"\n[... {left_out_mb:.1f} MB left out here; the whole output is in {one_line(name, 4096)} ...]\n\n")
    _show_span(file, tail_start, size, write, colour)


def _show_span(file: BinaryIO, start: int, end: int, write: Callable[[str], None], colour: bool) -> None:
    last = "\n"
    for text in _filtered(file, start, end, OutputFilter(colour=colour)):
        if text:
            write(text)
            last = text.removesuffix(RESET)[-1:] or last
    if last != "\n":
        write("\n")


def _filtered(file: BinaryIO, start: int, end: int, output: OutputFilter) -> Iterator[str]:
    file.seek(start)
    left = end - start
    while left > 0 and (data := file.read(min(CHUNK_BYTES, left))):
        left -= len(data)
        yield output.feed(data)
    yield output.finish()


def _cuts(file: BinaryIO, size: int, cap_bytes: int) -> tuple[int, int]:
    """Where the first part ends and the last begins: between lines where one ends nearby."""
    half = cap_bytes // 2
    search = min(LINE_SEARCH_BYTES, half)
    file.seek(half - search)
    head_end = half - search + (file.read(search).rfind(b"\n") + 1)
    file.seek(size - half)
    newline = file.read(search).find(b"\n")
    return head_end if head_end > half - search else half, size - half + newline + 1


def output_tail(path: Path) -> list[str]:
    """The last lines of a file, harmless to a terminal; none where it cannot be read."""
    output = OutputFilter(colour=False)
    text = output.feed(read_end(path, TAIL_BYTES).encode()) + output.finish()
    lines = text.expandtabs(4).splitlines()[-TAIL_LINES:]
    return [f"{' ' * min(len(line) - len(line.lstrip()), MAX_INDENT)}{one_line(line)}" for line in lines]


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def json_objects(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; others, cut ones and those nested too deeply are left out."""
    found = []
    for line in text.split("\n"):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except MALFORMED:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


def as_float(value: object) -> float:
    """Return a number as a float; NaN for what is no number, or one that no float holds."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
