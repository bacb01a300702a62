"""Lines on standard error and results on standard output; either may be closed.

Both may quote files of others. No character of theirs reaches the terminal that it would obey, and in a job of GitHub
Actions no line of theirs is a workflow command.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress

from harness.bits.errors import UsageError
from harness.bits.text import printable, put
from harness.render.workflow_commands import inert, is_command_in, is_outermost_on_github

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


def _without_commands(text: str) -> str:
    """Return a text in which GitHub obeys no workflow command; JSON is returned as it is, since its lines obey none."""
    is_obeyed = _JOB["is_on_github"] and is_command_in(text) and not _is_json(text)
    return inert(text) if is_obeyed else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
