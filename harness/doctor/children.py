"""What a check is given: the environment of this process, and child processes that a supervisor ends for certain.

probe the containment backends ─▶ scratch root, supervisors ─▶ Children ─▶ Host, whose `ask` runs a command
"""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import harness
from harness.bits.errors import HarnessError
from harness.bits.files import open_regular
from harness.process.child_env import probe_env
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.program_output import json_objects
from harness.process.run_directory import new_run_id
from harness.process.scratch import make_scratch_root, remove_tree
from harness.process.supervisor_client import (
    ContainmentBackends,
    ProcessSpec,
    Supervisor,
    Supervisors,
    find_py_spy,
    probe_backends,
)

GRACE_S = 0.5
UNKILLABLE_AFTER_S = 2.0
MAX_ANSWER_BYTES = 1_000_000


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


Ask = Callable[[Sequence[str], float], Awaitable[Answer]]
"""Runs a command; after so many seconds the process is ended, and the answer says so."""


@dataclass(frozen=True, slots=True)
class Host:
    """This machine, as this process was given it."""

    environ: Mapping[str, str]
    ask: Ask
    backend: str = ""
    """The strongest means of ending a process tree that works here; empty where none does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why each stronger one does not work."""


@dataclass(frozen=True, slots=True)
class Children:
    """Child processes, each with files and a TMPDIR of its own below a directory on a short path."""

    supervisor: Supervisor
    directory: Path
    _numbers: Iterator[int] = field(default_factory=count, init=False)

    def spec(
        self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, startup_timeout_s: float = inf
    ) -> ProcessSpec:
        """Return the order for a new child; its report and its output are in the directory of the order."""
        number = next(self._numbers)
        directory, tmpdir = (self.directory / f"{kind}{number}" for kind in "pt")
        directory.mkdir()
        tmpdir.mkdir(mode=0o700)
        marker = f"rlharness-probe-{self.directory.name}-{number}"
        return ProcessSpec(
            argv=tuple(argv),
            cwd=str(directory),  # not the user's: Python and Ray's workers import from where they are started
            env=probe_env(environ, tmpdir=str(tmpdir), marker=marker),
            directory=str(directory),
            marker=marker,
            timeout_s=timeout_s,
            startup_timeout_s=startup_timeout_s,
            grace_s=GRACE_S,
            unkillable_after_s=UNKILLABLE_AFTER_S,
        )

    async def ask(self, argv: Sequence[str], environ: Mapping[str, str], limit_s: float) -> Answer:
        """Run a command to its end, or for `limit_s` seconds."""
        spec = self.spec(argv, environ, limit_s)
        end = await self.supervisor.run(spec)
        with open_regular(Path(spec.directory, "output.log")) as file:
            output = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        problem = f"no answer within {limit_s:g} s" if end.reason == "timeout" else end.reason.replace("_", " ")
        if not problem and end.exit_code is None:
            problem = f"it died of signal {end.signal}"
        if end.unkillable:
            stuck = ", ".join(" ".join(process.split()[:2]) for process in end.unkillable)
            problem += f"; it cannot be killed (pid and state: {stuck})"
        return Answer(output, end.exit_code if not end.reason else None, problem)


@contextmanager
def open_children(backends: ContainmentBackends, invocation: Invocation) -> Iterator[Children]:
    """Yield the means to start children, for as long as it is entered."""
    # not in the user's TMPDIR: a directory made on a file system that hangs would hang this process for good
    scratch, held, _ = make_scratch_root({})
    try:
        with closing(Supervisors(backends.chosen, new_run_id(SystemClock().wall()), find_py_spy())) as supervisors:
            yield Children(supervisors, Path(scratch))
    finally:
        os.close(held)
        if complaint := remove_tree(scratch):
            invocation.note(complaint)


@contextmanager
def open_host(invocation: Invocation) -> Iterator[Host]:
    """This machine as the checks are given it. Where no child can be started, every answer says why."""
    why = ""

    async def ask_none(argv: Sequence[str], limit_s: float) -> Answer:
        return Answer("", None, f"no child process could be started: {why}")

    host = Host(invocation.environ, ask_none)
    with ExitStack() as stack:
        try:
            backends = probe_backends()
            host = replace(host, backend=backends.chosen, refused=backends.refused)
            children = stack.enter_context(open_children(backends, invocation))
        except (HarnessError, OSError) as error:  # too few files or processes are allowed: the other findings say so
            why = error.what if isinstance(error, HarnessError) else str(error)
            yield host if host.backend else replace(host, refused={"tried": why})
        else:
            yield replace(host, ask=lambda argv, limit_s: children.ask(argv, invocation.environ, limit_s))


def module_command(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs one of our modules as a program with `words`, and nothing of the working directory.

    Our own directory is searched last, so that it works where the package is not installed, and hides nothing.
    """
    root = str(Path(harness.__file__).resolve().parent.parent)
    code = f"import runpy, sys; sys.path.append({root!r}); runpy.run_module({module!r}, None, '__main__', True)"
    return (sys.executable, "-P", "-c", code, *words)
