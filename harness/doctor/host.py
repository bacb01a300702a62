"""What a check is given: the environment of this process, and children that take steps which may hang.

`host.ask(limit_s, step, …)` starts a child, which takes the steps in turn: functions of `probe` with their arguments.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
from harness.process.children import Answer, Children, UnkillableError
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.scratch import make_scratch_root, remove_tree

UNKILLABLE_AFTER_S = 2.0
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,NET,ENV", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
MAX_OUTPUT_CHARS = 300
Ask = Callable[..., list[Answer]]
"""Takes the limit of each step in seconds, and steps; returns the answers up to the first that is not ok."""


@dataclass(frozen=True, slots=True)
class Host:
    """This machine, as this process was given it."""

    environ: Mapping[str, str]
    ask: Ask


class Probes:
    """Groups of children in one directory on a short path, all ended with it."""

    def __init__(self, directory: str, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ
        self._groups: list[Children] = []

    def start(self, names: Sequence[str], environ: Mapping[str, str]) -> Children:
        """Start children; `environ` is what a training would inherit. They import nothing from where this one runs."""
        children = Children(tempfile.mkdtemp(dir=self._directory), SystemClock())
        self._groups.append(children)
        here, root = Path.cwd(), str(Path(harness.__file__).resolve().parents[1])
        path = [*(each for each in sys.path if Path(each).resolve() != here), root]
        for name in names:
            env = {**environ, **LOGS, "TMPDIR": children.directory}
            children.start(name, env, cwd=children.directory, sys_path=path)
        return children

    def ask(self, limit_s: float, *steps: tuple[Any, ...]) -> list[Answer]:
        """Have a child take `steps`."""
        try:
            children = self.start(["probe"], self._environ)
        except OSError as error:  # too few files or processes are allowed: other findings say so
            return [Answer("lost", f"no child process could be started: {error}")]
        answers: list[Answer] = []
        for step in steps:
            children.send("probe", *step)
            answers.append(children.gather(["probe"], limit_s)["probe"])
            if answers[-1].kind != "ok":
                break
        last, output = answers[-1], children.new_output("probe")
        stuck = self._end(children)
        if last.kind == "late":
            answers[-1] = replace(last, value=f"no answer within {limit_s:g} s{stuck}")
        elif last.kind == "lost":
            answers[-1] = replace(last, value=f"it {last.value}: {' '.join(output.split())[-MAX_OUTPUT_CHARS:]}")
        return answers

    def _end(self, children: Children) -> str:
        """End a group; why it could not be ended."""
        self._groups.remove(children)
        try:
            children.end(UNKILLABLE_AFTER_S)
        except UnkillableError as error:
            return f"; it cannot be killed (pid and state: {' '.join(str(error).split()[:2])})"
        return ""

    def close(self) -> None:
        """End all of them."""
        for children in list(self._groups):
            self._end(children)


@contextmanager
def open_probes(invocation: Invocation) -> Iterator[Probes]:
    """Yield the means to start children. HarnessError or OSError where there is no directory for them."""
    # not in the user's TMPDIR: a directory made on a file system that hangs would hang this process for good
    scratch, held, _ = make_scratch_root({})
    probes = Probes(scratch, invocation.environ)
    try:
        yield probes
    finally:
        probes.close()
        os.close(held)
        if complaint := remove_tree(scratch):
            invocation.note(complaint)
