"""Lines for the person who started the recording, each said once in a process."""

import sys

_said: set[str] = set()


def say_once(line: str) -> None:
    """Print a line to standard error, unless this process has printed it before."""
    if line not in _said:
        _said.add(line)
        print(f"rlharness: {line}", file=sys.stderr)
