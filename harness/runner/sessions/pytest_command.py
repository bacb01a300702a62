"""How every pytest process of a run begins."""

import sys

from harness.runner.options import RunOptions


def pytest_command(options: RunOptions) -> tuple[str, ...]:
    """Return the interpreter, pytest and the options that all of them share."""
    command = [sys.executable, *(["-P"] if options.safe_path else []), "-m", "pytest"]
    return (*command, "--color=yes") if options.colour else tuple(command)
