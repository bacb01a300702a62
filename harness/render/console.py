"""Lines on standard error and results on standard output, where either may be gone."""

import sys
from contextlib import suppress

from harness.core.errors import UsageError


def say(text: str) -> None:
    """A line on stderr, for what no reporter says; silence where stderr is gone."""
    with suppress(OSError, ValueError):
        print(f"rlharness: {text.removeprefix('rlharness: ')}", file=sys.stderr, flush=True)


def stdout_encodes(text: str) -> bool:
    """Whether standard output has bytes for these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(result: str) -> None:
    """What was asked for, on stdout; a reader that has gone wants no more of it.

    Raises UsageError where it cannot be written.
    """
    try:
        with suppress(BrokenPipeError):
            print(result, flush=True)
    except OSError as error:
        raise UsageError(f"the result cannot be written to standard output: {error.strerror}") from None
