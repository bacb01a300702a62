"""Lines for the person who started the recording. None of them ends the program: standard error may be a full disk."""

import sys
from contextlib import suppress
from functools import cache


def say(line: str) -> None:
    """Write a line to standard error; a full disk, or a stream that is closed or missing, gets none.

    Past its buffer: what a full disk leaves there makes Python exit with 120.
    """
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            if raw := getattr(getattr(sys.stderr, "buffer", None), "raw", None):
                raw.write(f"rlharness: {line}\n".encode(errors="backslashreplace"))
            else:
                print(f"rlharness: {line}", file=sys.stderr, flush=True)


@cache
def say_once(line: str) -> None:
    """Say a line, unless this process has said it before."""
    say(line)
