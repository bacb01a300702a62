"""Bringing a unit's kept output to the screen: not more than a person reads, and harmless to the terminal.

output.log holds whatever the tests wrote: 200 MB of it, bytes that are no text, sequences that retitle the window,
move the cursor over what was said before, or ask the terminal to type something back. Colours pass; the rest is
dropped where it only moves things, and made visible where it is no known sequence.
"""

import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from harness.bits.files import MALFORMED
from harness.bits.text import escape, one_line
from harness.process.growing_file import read_end

MAX_SHOWN_BYTES = 10_000_000
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


def harmless(data: bytes, *, colour: bool) -> str:
    """Return an output as text that a terminal may be given, with its colours or without."""
    is_coloured = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal is_coloured
        kind, found = match.lastgroup, match.group()
        if kind == "colour" and colour:
            is_coloured = True
            return found
        if kind == "newline":
            return "\n"
        return escape(found) if kind == "control" else ""

    text = _SEQUENCE.sub(replaced, data.decode("utf-8", "backslashreplace"))
    return text + (RESET if is_coloured else "")


def show_file(
    file: BinaryIO, name: str, write: Callable[[str], None], *, colour: bool, cap_bytes: int = MAX_SHOWN_BYTES
) -> None:
    """Give `write` the file, ending with a newline; beyond `cap_bytes` the lines of its first and its last half.

    `name` is where a person finds all of it. Raises OSError where the file cannot be read, and what `write` raises.
    """
    size = os.fstat(file.fileno()).st_size
    if size <= cap_bytes:
        _show(file.read(size), write, colour)
        return
    head = file.read(cap_bytes // 2)
    file.seek(size - cap_bytes // 2)
    tail = file.read(cap_bytes // 2)
    head = head[: head.rfind(b"\n") + 1 or None]  # between lines, where there are any
    tail = tail[tail.find(b"\n") + 1 :]
    _show(head, write, colour)
    left_out_mb = (size - len(head) - len(tail)) / 1e6
    write(f"\n[... {left_out_mb:.1f} MB left out here; the whole output is in {one_line(name, 4096)} ...]\n\n")
    _show(tail, write, colour)


def _show(data: bytes, write: Callable[[str], None], colour: bool) -> None:
    if text := harmless(data, colour=colour):
        write(text if text.removesuffix(RESET).endswith("\n") else f"{text}\n")


def output_tail(path: Path) -> list[str]:
    """The last lines of a file, harmless to a terminal; none where it cannot be read."""
    text = harmless(read_end(path, TAIL_BYTES).encode(), colour=False)
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
