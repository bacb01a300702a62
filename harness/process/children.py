"""Python processes that call the functions they are sent: a fresh interpreter each, ended for certain.

children = Children(directory, clock)
children.start("rank 0", env)
  ours                                    its own, child_main.py
  sys.path ─────────────────────────────▶ dies with its parent
  send("rank 0", function, *args) ──────▶ imports the module of the function, and calls it
  gather(["rank 0"], timeout_s) ◀──────── Answer: the result, or the failure
children.end()                            SIGKILL to all below them, and to all that bear the marker
"""

import contextlib
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.files import open_regular, read_text
from harness.process.child_main import STACK_SIGNAL
from harness.process.clock import Clock
from harness.process.program_output import signal_name
from harness.process.supervisor import process_tree, stacks
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import find_py_spy

CHILD_MAIN = str(Path(__file__).with_name("child_main.py"))
MARKER = "RLHARNESS_CHILD"
"""Variable that identifies the processes of a group, whichever process has adopted them."""
POLL_S = 0.05
EXIT_S = 2.0
"""Seconds that a process with a closed connection has to end, before the closed connection is reported."""
STACK_WAIT_S = 1.0
END_S = 10.0
MAX_OUTPUT_BYTES = 1_000_000


class UnkillableError(RuntimeError):
    """Processes survived SIGKILL."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one call."""

    kind: str
    """"ok", "failed", "skipped" (by pytest.skip), "lost" (the child has ended), "late"."""
    value: Any
    """Its result if it is ok, else the reason in a line: "ValueError: no", "died of SIGSEGV"."""
    text: str = ""
    """Traceback of a failure."""


class _Child:
    def __init__(self, process: "subprocess.Popen[bytes]", connection: "Connection[Any, Any]", stem: str) -> None:
        self.process, self.connection = process, connection
        self.log_path, self.stack_path = f"{stem}.log", f"{stem}.stack"
        self.num_read = 0

    def receive(self) -> Answer | None:
        lost = self.process.poll() is not None  # asked first: what it said before it died is still read
        try:
            if self.connection.poll():
                return Answer(*pickle.loads(self.connection.recv_bytes()))
            if not lost:
                return None
        except (EOFError, ConnectionResetError):
            pass
        try:
            code = self.process.wait(timeout=EXIT_S)
        except subprocess.TimeoutExpired:
            return Answer("lost", "closed its connection")
        return Answer("lost", f"died of {signal_name(-code)}" if code < 0 else f"exited with {code}")


class Children:
    """Children of one owner, each in a session of its own, by name.

    They die with the thread that started them: that must not be one that ends before them.
    """

    def __init__(self, directory: str, clock: Clock) -> None:
        self.directory = directory
        """Directory of their outputs and stacks."""
        self.marker = f"rlharness-child-{secrets.token_hex(8)}"
        """Text that no other process has in its environment."""
        self._clock = clock
        self._children: dict[str, _Child] = {}

    @property
    def names(self) -> list[str]:
        """Names of those that have not been ended."""
        return list(self._children)

    def start(
        self, name: str, env: Mapping[str, str], *, cwd: str | None = None, sys_path: Sequence[str] | None = None
    ) -> None:
        """Start a child that imports from `sys_path`, by default this process's. OSError where there is no process."""
        stem = os.path.join(self.directory, name.replace(" ", "-"))
        ours, theirs = Pipe()
        with theirs, open(f"{stem}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", CHILD_MAIN, str(theirs.fileno()), f"{stem}.stack"],
                env={**env, MARKER: self.marker},
                cwd=cwd,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[name] = _Child(process, ours, stem)
        self._send(name, pickle.dumps(list(sys.path if sys_path is None else sys_path)))

    def send(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Have a child call a function of a module. UsageError for what cannot be pickled.

        What a child is no longer there to read is lost, and `gather` says so.
        """
        self._send(name, _order(function, args, kwargs))

    def _send(self, name: str, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._children[name].connection.send_bytes(message)

    def gather(self, names: Sequence[str], timeout_s: float, grace_s: float = inf) -> dict[str, Answer]:
        """Return one answer of each; once one has failed or is lost, the others have `grace_s` seconds at most."""
        until_s, why = self._clock.monotonic_s() + timeout_s, f"still running after {timeout_s:g} s"
        found: dict[str, Answer] = {}
        while len(found) < len(names) and (left_s := until_s - self._clock.monotonic_s()) > 0:
            pending = {name: self._children[name] for name in names if name not in found}
            wait([child.connection for child in pending.values()], timeout=min(left_s, POLL_S))
            for name, child in pending.items():
                if (answer := child.receive()) is None:
                    continue
                found[name] = answer
                if answer.kind in ("failed", "lost") and self._clock.monotonic_s() + grace_s < until_s:
                    until_s = self._clock.monotonic_s() + grace_s
                    why = f"still running {grace_s:g} s after another one failed"
        return {name: found.get(name) or Answer("late", why) for name in names}

    def new_output(self, name: str) -> str:
        """Return what a child and its children have printed since the last call; the end, if it is very long."""
        child = self._children[name]
        with open_regular(child.log_path) as log:
            size = log.seek(0, os.SEEK_END)
            start = max(child.num_read, size - MAX_OUTPUT_BYTES)
            log.seek(start)
            text = log.read(size - start).decode("utf-8", "replace")
            skipped, child.num_read = start - child.num_read, size
        return f"[{skipped} bytes omitted]\n{text}" if skipped else text

    def stacks(self, names: Iterable[str]) -> dict[str, str]:
        """Return the stacks of each child and all below it, from outside; where that is forbidden, its own dump.

        Takes some seconds. Children that have ended are left out.
        """
        found: dict[str, str] = {}
        path, py_spy = os.path.join(self.directory, "stacks.txt"), find_py_spy()
        for name in names:
            child = self._children[name]
            top = process_tree.read_process(child.process.pid) if child.process.poll() is None else None
            if top is None:
                continue
            has_own = stacks.dump_stacks([top], path, py_spy, self._clock) == 1
            stacks.dump_stacks(list(process_tree.descendants(top.pid)), path, py_spy, self._clock)
            found[name] = read_text(path, errors="replace") + ("" if has_own else self._own_stack(child, top))
            os.unlink(path)
        return found

    def _own_stack(self, child: _Child, top: Process) -> str:
        """What the child writes of its own Python threads when it is sent STACK_SIGNAL."""
        if not os.path.exists(child.stack_path):  # it has not got so far as to listen
            return ""
        process_tree.send_signal(top, STACK_SIGNAL)
        until_s = self._clock.monotonic_s() + STACK_WAIT_S
        text = ""
        while self._clock.monotonic_s() < until_s:
            now = read_text(child.stack_path, errors="replace")
            if now and now == text:
                break
            text = now
            threading.Event().wait(POLL_S)
        return text

    def end(self, limit_s: float = END_S) -> list[str]:
        """End all children; return a description of each process that they had left, which is killed too.

        Those below them and those with the marker: a process whose parent has died is no longer below, and one that
        has set its title (as Ray's do) has no marker. UnkillableError if one does not end in time.
        """
        ending, self._children = list(self._children.values()), {}
        pids = {child.process.pid for child in ending if child.process.poll() is None}
        own = [process for process in map(process_tree.read_process, pids) if process]
        for process in own:
            process_tree.send_signal(process, signal.SIGSTOP)  # so that nothing more is started meanwhile
        left = kill_all(lambda: [p for p in self._below(pids) if p.pid not in pids], self._clock, limit_s)
        kill_all(lambda: still_there(own), self._clock, limit_s)
        for child in ending:
            child.process.wait()
            child.connection.close()
        return left

    def _below(self, pids: Iterable[int]) -> set[Process]:
        found = (*process_tree.descendants(*pids), *process_tree.bearing(self.marker))
        return {process for process in found if not process.is_zombie}


def kill_all(alive: Callable[[], list[Process]], clock: Clock, limit_s: float = END_S) -> list[str]:
    """Send SIGKILL to all that `alive` finds, until it finds no process; return a description of each.

    Raises UnkillableError if a process survives for `limit_s`.
    """
    until_s = clock.monotonic_s() + limit_s
    killed: dict[tuple[int, int], str] = {}
    while found := alive():
        for process in found:
            killed.setdefault((process.pid, process.start_ticks), process_tree.describe(process))
            process_tree.send_signal(process, signal.SIGKILL)
        if clock.monotonic_s() > until_s:
            raise UnkillableError("; ".join(map(process_tree.describe, found)))
        threading.Event().wait(0.01)
    return list(killed.values())


def still_there(processes: Iterable[Process]) -> list[Process]:
    """Return those of them that have not ended."""
    now = [(process, process_tree.read_process(process.pid)) for process in processes]
    return [then for then, now in now if now and now.start_ticks == then.start_ticks and not now.is_zombie]


def name_of(function: Any) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__qualname__", function))


def _order(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return what a child is sent: the modules to import first, and the call."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    name = getattr(inner, "__module__", "") or type(inner).__module__
    try:
        payload = pickle.dumps((function, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{name_of(function)} and its arguments cannot be sent to a child process: {error}",
            legal="a function of a module, and arguments that can be pickled",
            remedy="move the function out of the test, to the top of the file",
        ) from None
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return pickle.dumps(([(name, path)], payload))
