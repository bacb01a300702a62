"""Child processes that checks ask, each under a supervisor that ends its process tree for certain.

probe the containment backends ─▶ scratch root, supervisors ─▶ Host, whose `ask` runs a command and waits for it
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

from harness.bits.errors import HarnessError
from harness.bits.files import open_regular
from harness.doctor.host import Answer, Host
from harness.process.child_env import child_env
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.process.scratch import make_scratch_root, remove_tree
from harness.process.supervisor_client import ContainmentBackends, ProcessSpec, Supervisors, find_py_spy, probe_backends

GRACE_S = 0.5
UNKILLABLE_AFTER_S = 2.0
MAX_ANSWER_BYTES = 1_000_000


@contextmanager
def host_of(invocation: Invocation) -> Iterator[Host]:
    """This machine as the checks are given it, with the means to ask children for as long as it is entered."""
    host = Host(invocation.environ, invocation.cwd, _Nobody(""))
    with ExitStack() as stack:
        try:
            backends = probe_backends()
            host = replace(host, backend=backends.chosen, refused=backends.refused)
            children = _Children(*stack.enter_context(supervised_scratch(backends, invocation)), invocation)
        except (HarnessError, OSError) as error:  # too few files or processes are allowed: the other findings say so
            why = error.what if isinstance(error, HarnessError) else str(error)
            yield replace(host, ask=_Nobody(why), refused=host.refused if host.backend else {"tried": why})
            return
        yield replace(host, ask=children)


@contextmanager
def supervised_scratch(backends: ContainmentBackends, invocation: Invocation) -> Iterator[tuple[Supervisors, Path]]:
    """Yield what child processes need: a containment backend, and a directory for their files."""
    # not in the user's TMPDIR: a directory made on a file system that hangs would hang this process for good
    scratch, held, _ = make_scratch_root({})
    try:
        with closing(Supervisors(backends.chosen, new_run_id(SystemClock().wall()), find_py_spy())) as supervisors:
            yield supervisors, Path(scratch)
    finally:
        os.close(held)
        if complaint := remove_tree(scratch):
            invocation.note(complaint)


class _Nobody:
    """Stands in where no child can be started; every answer says why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def __call__(self, argv: Sequence[str], *, limit_s: float) -> Answer:
        return Answer("", None, f"no child process could be started: {self._problem}")


class _Children:
    """Asks child processes, each under a supervisor of its own."""

    def __init__(self, supervisors: Supervisors, scratch: Path, invocation: Invocation) -> None:
        self._supervisors = supervisors
        self._scratch = scratch
        self._invocation = invocation
        self._num_asked = 0

    async def __call__(self, argv: Sequence[str], *, limit_s: float) -> Answer:
        self._num_asked += 1
        directory = self._scratch / f"{self._num_asked}"
        tmpdir = self._scratch / f"{self._num_asked}t"
        directory.mkdir()
        tmpdir.mkdir()
        marker = f"{self._scratch.name}-{self._num_asked}"
        end = await self._supervisors.run(
            ProcessSpec(
                argv=tuple(argv),
                cwd=str(self._invocation.cwd),
                env=child_env(self._invocation.environ, gpus=None, tmpdir=str(tmpdir), marker=marker, master_port=0),
                directory=str(directory),
                marker=marker,
                timeout_s=limit_s,
                startup_timeout_s=inf,
                grace_s=GRACE_S,
                unkillable_after_s=UNKILLABLE_AFTER_S,
            )
        )
        with open_regular(directory / "output.log") as file:
            output = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        problem = ""
        if end.reason == "timeout":
            problem = f"no answer within {limit_s:g} s"
        elif end.reason or end.exit_code is None:
            problem = end.reason.replace("_", " ") or f"it died of signal {end.signal}"
        if end.unkillable:
            stuck = ", ".join(" ".join(process.split()[:2]) for process in end.unkillable)
            problem += f"; it cannot be killed (pid and state: {stuck})"
        return Answer(output, end.exit_code if not end.reason else None, problem)
