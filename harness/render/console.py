"""Lines on standard error and results on standard output; either may be closed.

Both may quote files of others. No character of theirs reaches the terminal that it would obey, and in a job of GitHub
Actions no line of theirs is a workflow command.
"""

import json
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from harness.bits.errors import UsageError
from harness.bits.text import printable, put

_COMMAND = re.compile(r"^[^\S\n]*::|##\[", re.MULTILINE)
"""Line of its output that a job of GitHub Actions obeys: it begins with `::`, after blanks, or holds `##[`."""
_JOB = {"is_on_github": False}


def enter_job(environ: Mapping[str, str]) -> None:
    """Take note of whether this process runs in a job of GitHub Actions."""
    _JOB["is_on_github"] = is_outermost_on_github(environ)


def say(text: str) -> None:
    """Print a line on standard error; do nothing if standard error is closed."""
    with suppress(OSError, ValueError):
        line = printable(f"rlharness: {text.removeprefix('rlharness: ')}")
        print(_without_commands(line), file=sys.stderr, flush=True)


def show(result: str) -> None:
    """Print a result on standard output, what its encoding lacks as escapes; ignore a reader that closed the pipe.

    Raises UsageError if the result cannot be written.
    """
    try:
        with suppress(BrokenPipeError):
            put(sys.stdout, f"{_without_commands(printable(result))}\n")
            sys.stdout.flush()
    except OSError as error:
        raise UsageError(f"the result cannot be written to standard output: {error.strerror}") from None


def at_most(lines: Sequence[str], limit: int) -> list[str]:
    """Return the first lines of a list, and a line with the number of the others."""
    return [*lines[:limit], *([f"and {len(lines) - limit:,} more"] if len(lines) > limit else [])]


def painted(text: str, code: str, colour: bool) -> str:
    """Return a text in a colour, by its ANSI code, or as it is."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _without_commands(text: str) -> str:
    """Return a text in which GitHub obeys no workflow command; JSON is returned as it is, since its lines obey none."""
    if not _JOB["is_on_github"] or _COMMAND.search(text) is None:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return inert(text)
    return text


# ---- workflow commands


def is_on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def is_outermost_on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions, and not a test of a run that reports to the job itself."""
    return is_on_github(environ) and "RLHARNESS_ATTEMPT" not in environ


def stop_lines() -> tuple[str, str]:
    """Return the lines after and before which GitHub obeys no workflow command, whatever a test prints between them."""
    token = secrets.token_hex(16)  # tests cannot guess it
    return f"::stop-commands::{token}", f"::{token}::"


def inert(text: str) -> str:
    """Return text between lines that have GitHub obey no workflow command in it; as it is if it can hold none."""
    if "::" not in text and "##[" not in text:
        return text
    stop, resume = stop_lines()
    return f"{stop}\n{text}\n{resume}"
