"""Small pieces of wording that every reporter shares, and what makes foreign text safe to print.

Paths, node ids and reasons come from other people's suites: they may hold control characters that move a cursor,
line breaks, text that runs from right to left, or bytes that are no text at all.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT = re.compile(r"(\x1b\[[0-9;]{0,16}m|[\n\t])")
"""Colours, line breaks and tabs, which a result of rlharness may hold."""


def escape(character: str) -> str:
    """A character as its Python escape: \\x1b, \\u202e."""
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def harmless(text: str) -> str:
    """Return `text` with each character that a terminal would obey, line breaks too, as its escape."""
    return _UNSAFE.sub(lambda match: escape(match.group()), text)


def printable(text: str) -> str:
    """Return a result with colours, line breaks and tabs, and each other character that a terminal obeys escaped."""
    if _UNSAFE.search(text) is None:
        return text
    pieces = _LAYOUT.split(text)
    return "".join(piece if at % 2 else harmless(piece) for at, piece in enumerate(pieces))


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line of at most `limit` characters, with nothing in it that a terminal would obey."""
    joined = " ".join(text.split())
    shown = joined if len(joined) <= limit else joined[: limit - 3] + "..."
    return harmless(shown)


def path_text(path: Path) -> str:
    """A path as a person would type it here: without `..`, and relative where it lies below the working directory."""
    plain = Path(os.path.realpath(path)) if ".." in path.parts else path
    here = Path.cwd()
    return str(plain.relative_to(here) if plain.is_relative_to(here) else plain)


def nearest(name: str, legal: Iterable[str]) -> str:
    """Return a question that names the nearest legal name, or an empty text if none is near."""
    import difflib

    found = difflib.get_close_matches(name, list(legal), n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else ""


def put(stream: TextIO, text: str) -> None:
    """Write `text`, with what the stream's encoding has no bytes for as escapes.

    Raises OSError or ValueError where the stream is gone.
    """
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def count(number: int, noun: str, plural: str = "") -> str:
    """1 unit, 2 units, 1,200 units."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ranges(names: Iterable[str]) -> str:
    """0,1,2,3,6 as "0-3,6"; names that are no numbers stay as they are."""
    names = list(names)
    numbers = sorted(int(name) for name in names if name.isdecimal())
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join([*spans, *(name for name in names if not name.isdecimal())])
