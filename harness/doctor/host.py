"""Input of a check: this process's environment, its directory, its means, and a way to run a child process."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import harness
from harness.process.clock import Clock, SystemClock
from harness.process.program_output import json_objects


@dataclass(frozen=True, slots=True)
class Answer:
    """Output of a child process."""

    output: str
    """Standard output and standard error together."""
    exit_code: int | None = 0
    """None where it did not exit by itself."""
    problem: str = ""
    """Why there is no whole answer; empty where there is one."""

    def objects(self, *keys: str) -> list[dict[str, Any]]:
        """Return the JSON objects among its lines that have these keys; libraries may log others between them."""
        return [each for each in json_objects(self.output) if all(key in each for key in keys)]


class AskChild(Protocol):
    """Runs a command, by the means that hold the process trees of tests, and says what it printed."""

    async def __call__(self, argv: Sequence[str], *, limit_s: float) -> Answer:
        """The answer; after `limit_s` seconds the process is ended, and `problem` says so."""


@dataclass(frozen=True, slots=True)
class Host:
    """This machine, as this process was given it."""

    environ: Mapping[str, str]
    cwd: Path
    ask: AskChild
    clock: Clock = field(default_factory=SystemClock)
    backend: str = ""
    """The strongest means of ending a process tree that works here; empty where none does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why each stronger one does not work."""


def module_command(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs one of our modules as a program with `words`, and nothing of the working directory.

    Our own directory is searched last, so that it works where the package is not installed, and hides nothing.
    """
    root = str(Path(harness.__file__).resolve().parent.parent)
    code = f"import runpy, sys; sys.path.append({root!r}); runpy.run_module({module!r}, None, '__main__', True)"
    return (sys.executable, "-P", "-c", code, *words)
