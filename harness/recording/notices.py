"""Lines for the person who started the recording. None of them ends the program: standard error may be a full disk."""

import sys
from contextlib import suppress

_said: set[str] = set()


def say(line: str) -> None:
    """Print a line to standard error; a full disk, or a stream that is closed or missing, gets none."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"rlharness: {line}", file=sys.stderr, flush=True)


def say_once(line: str) -> None:
    """Say a line, unless this process has said it before."""
    if line not in _said:
        _said.add(line)
        say(line)
