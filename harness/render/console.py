"""Lines on standard error and results on standard output; either may be closed."""

import sys
from contextlib import suppress

from harness.core.errors import UsageError


def say(text: str) -> None:
    """Print a line on standard error; do nothing if standard error is closed."""
    with suppress(OSError, ValueError):
        print(f"rlharness: {text.removeprefix('rlharness: ')}", file=sys.stderr, flush=True)


def stdout_encodes(text: str) -> bool:
    """Return whether standard output can encode these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(result: str) -> None:
    """Print a result on standard output; ignore a reader that closed the pipe.

    Raises UsageError if the result cannot be written.
    """
    try:
        with suppress(BrokenPipeError):
            print(result, flush=True)
    except OSError as error:
        raise UsageError(f"the result cannot be written to standard output: {error.strerror}") from None
