"""Lines for the person who started the recording. None of them ends the program: standard error may be a full disk."""

import os
import sys
from contextlib import suppress

_said: set[str] = set()


def say(line: str) -> None:
    """Print a line to standard error, past Python's buffers: what a full disk refuses must not come back at their end.

    Never raises. Where the program has replaced `sys.stderr`, the line goes to its own stream.
    """
    text, stream = f"rlharness: {line}\n", sys.stderr
    with suppress(OSError, ValueError, AttributeError):
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):  # a text in memory, say
            stream.write(text)
            return
        with suppress(OSError):
            stream.flush()
        os.write(descriptor, text.encode(errors="backslashreplace"))


def say_once(line: str) -> None:
    """Say a line, unless this process has said it before."""
    if line not in _said:
        _said.add(line)
        say(line)
