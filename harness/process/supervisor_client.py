"""The runner's side of an attempt: starts its supervisor, sends it orders and receives its end.

    run() ──fork server──▶ supervisor ("started", "terminating", "finished" as JSON lines on its stdout)
      │ cancel(), kill(): a word on its stdin. The pipe closing (this process died) makes it kill the tree.
      ├─ a supervisor that was stopped is continued, one that is overdue is killed.
      ├─ the supervisor's stdout closing without "finished": it was killed, and the tree is ended from here.
      └─ "finished" with an unkillable process: the supervisor stays until it ends, and is then reaped.

Whatever happens ends in one future, `_Attempt.ended`; cancelling run() kills the tree and still waits for it.
"""

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.bits.errors import ExhaustedError, HarnessError
from harness.bits.files import open_for_writing
from harness.process.exhaustion import exhaustion_of
from harness.process.scratch import require_proc
from harness.process.supervisor import process_tree, rescue, syscalls
from harness.process.supervisor.containment import BACKENDS, cgroup_home
from harness.process.supervisor.fork_server import Forked, ForkServer, start_python

PROBE_S = 30.0
LACKING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a probe that say that processes, memory or descriptors have run out, and nothing of the machine."""
RESCUE_S = 5.0
RESCUE_ROUND_S = 0.05
WATCH_S = 1.0
OVERDUE_S = 30.0
"""A supervisor that has not reported its end so long after the limits of its attempt is killed."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Order to a supervisor: one command, its files and its limits."""

    argv: tuple[str, ...]
    """The leader's command; the first word is a path."""
    cwd: str
    env: dict[str, str]
    """The leader's whole environment."""
    directory: str
    """Exists; output.log, report.jsonl, stacks.txt and supervisor.log live in it."""
    marker: str
    """Text present in `env`, unique to this attempt, by which its processes can be found; fit for a file name."""
    timeout_s: float
    """Limit of the whole attempt."""
    startup_timeout_s: float
    """Limit until the report says "collected"; inf for none."""
    grace_s: float
    """Seconds from SIGINT to SIGKILL, with SIGTERM half-way."""
    unkillable_after_s: float = 10.0
    """Seconds after SIGKILL until remaining processes count as unkillable."""
    stdin: str = os.devnull
    """The file that the leader reads as its standard input."""
    pid_file: str = ""
    """Where the leader leaves its pid, as it sees it itself; empty for nowhere."""
    session: Mapping[str, Any] | None = None
    """Order to a leader that is forked from `Supervisors.parent`, in JSON's types; None where it must not be forked.
    Where it cannot be forked, `argv` is run."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of an attempt."""

    exit_code: int | None
    """The leader's, if it exited."""
    signal: int | None
    """The signal that ended the leader, if one did."""
    reason: str
    """"" when it ended by itself, else "timeout", "test_timeout", "collect_timeout", "cancelled", "killed" or
    "supervisor_lost"."""
    left_behind: tuple[str, ...]
    """Processes that outlived the leader, as "pid state command"; they have been killed."""
    unkillable: tuple[str, ...]
    """Processes that SIGKILL did not end; their supervisor stays with them."""
    duration_s: float


class Parent(Protocol):
    """A process from which leaders are forked that share what it has imported."""

    @property
    def pid(self) -> int:
        """Its number; 0 once it has ended."""

    async def fork(self, stderr: int) -> Forked | None:
        """Fork a supervisor, a child of this process; None where it cannot."""


class LostError(HarnessError):
    """The machine of an attempt was lost before its end, which says nothing about its tests."""


class Supervisor(Protocol):
    """Whatever can carry out an attempt."""

    async def run(self, spec: ProcessSpec) -> ProcessEnd:
        """Carry it out to its proven end; cancelling the task kills the tree first."""


@dataclass(frozen=True, slots=True)
class ContainmentBackends:
    """Result of the probe: the strongest tier that this machine allows, and why it refuses the stronger ones."""

    chosen: str
    refused: dict[str, str]


def find_py_spy() -> str:
    """The py-spy of this environment, else one on the path; empty without any."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


class Supervisors:
    """Makes supervisors on this machine and knows which attempts are alive.

    One per process, which starts no other children meanwhile: when a supervisor is lost, its orphans are known
    by having become children of this process.
    """

    def __init__(self, backend: str, run_id: str, py_spy: str = "") -> None:
        syscalls.become_subreaper()  # orphans of a killed supervisor come to us
        self._tier = backend
        self._cgroup_prefix = f"{cgroup_home()}/rlharness-{run_id}" if backend == "cgroup" else ""
        self._py_spy = py_spy
        self._live: dict[str, _Attempt] = {}
        self._staying: set[_Attempt] = set()
        self._fork_server = ForkServer()
        self.parent: Parent | None = None
        """Where the leader of a spec with a `session` is forked from; None to start a program for each."""

    def close(self) -> None:
        """Make no more supervisors; those that stay with the unkillable are left to it."""
        self._fork_server.close()

    async def run(self, spec: ProcessSpec, on_terminating: Callable[[str], None] = lambda reason: None) -> ProcessEnd:
        """Carry out one attempt; `on_terminating` hears the reason when its tree begins to be ended.

        Cancelling the task kills the tree, waits until none of it lives, then lets the cancellation through.
        """
        cgroup = f"{self._cgroup_prefix}-{os.path.basename(spec.marker)}" if self._cgroup_prefix else ""
        attempt = _Attempt(spec, _Means(self._tier, cgroup, self._py_spy), on_terminating, self._unrelated_pids)
        self._live[spec.marker] = attempt
        cancelled: asyncio.CancelledError | None = None
        try:
            attempt.start(*await self._supervisor(attempt))
            while not attempt.ended.done():
                try:
                    await asyncio.shield(attempt.ended)
                except asyncio.CancelledError as error:  # however often: the tree comes first
                    cancelled = error
                    attempt.order("kill")
            end = attempt.ended.result()
        finally:
            del self._live[spec.marker]
            if attempt.is_open:
                self._staying.add(attempt)
                attempt.on_closed = self._staying.discard
        if cancelled is not None:
            raise cancelled
        return end

    def cancel(self, marker: str) -> None:
        """End the attempt in order: SIGINT, SIGTERM, SIGKILL."""
        if attempt := self._live.get(marker):
            attempt.order("cancel")

    def kill(self, marker: str) -> None:
        """End the attempt at once."""
        if attempt := self._live.get(marker):
            attempt.order("kill")

    def pid_of(self, marker: str) -> int:
        """Return the supervisor of an attempt, below which its processes are; 0 while it has none."""
        attempt = self._live.get(marker)
        return attempt.pid if attempt is not None and attempt.is_open else 0

    async def _supervisor(self, attempt: "_Attempt") -> tuple[Forked, bool]:
        """Return a supervisor for an attempt, and whether it was forked from the parent."""
        spec, parent = attempt.spec, self.parent
        with open_for_writing(os.path.join(spec.directory, "supervisor.log")) as file:
            log = file.fileno()
            if parent is not None and spec.session is not None and (forked := await parent.fork(log)) is not None:
                return forked, True
            return self._fork_server.fork(log), False

    def _unrelated_pids(self) -> frozenset[int]:
        """The fork server and the supervisors that live: no orphans of a lost one."""
        open_ones = (attempt.pid for attempt in (*self._live.values(), *self._staying) if attempt.is_open)
        parent = (self.parent.pid,) if self.parent is not None and self.parent.pid else ()
        return frozenset((self._fork_server.pid, *parent, *open_ones))


@dataclass(frozen=True, slots=True)
class _Means:
    """With what a supervisor holds its tree and looks at it."""

    backend: str
    cgroup: str
    """The control group's directory, which the supervisor makes; empty in other tiers."""
    py_spy: str


class _Attempt:
    """One supervisor process and what it has said so far."""

    def __init__(
        self,
        spec: ProcessSpec,
        means: _Means,
        on_terminating: Callable[[str], None],
        unrelated_pids: Callable[[], frozenset[int]],
    ) -> None:
        self.spec = spec
        self.means = means
        self._on_terminating = on_terminating
        self._unrelated_pids = unrelated_pids
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        limits = (spec.timeout_s, spec.grace_s, spec.unkillable_after_s, OVERDUE_S)
        self._overdue_s = self._started_s + sum(limits)
        self._rescue_until_s = 0.0
        self.ended: asyncio.Future[ProcessEnd] = self._loop.create_future()
        self.is_open = False
        """Whether the supervisor has been started and not been reaped."""
        self.on_closed: Callable[[_Attempt], None] = lambda attempt: None
        self.pid = 0
        self._stdin = self._stdout = -1
        self._start_ticks = 0
        self._early: list[str] = []
        """Said before there was a supervisor to hear it."""
        self._heard = b""
        self._finished: ProcessEnd | None = None
        self._bug: Exception | None = None

    def start(self, forked: Forked, is_parents: bool) -> None:
        """Give its order to the supervisor."""
        spec = self.spec
        order = {
            "argv": list(spec.argv),
            "cwd": spec.cwd,
            "env": spec.env,
            "directory": spec.directory,
            "timeout_s": spec.timeout_s,
            "startup_timeout_s": spec.startup_timeout_s,
            "grace_s": spec.grace_s,
            "unkillable_after_s": spec.unkillable_after_s,
            "stdin": spec.stdin,
            "pid_file": spec.pid_file,
            "tier": self.means.backend,
            "cgroup": self.means.cgroup,
            "py_spy": self.means.py_spy,
            "session": spec.session if is_parents else None,
        }
        self.pid, self._stdin, self._stdout = forked
        self.is_open = True
        process = process_tree.read_process(self.pid)  # cannot be gone: it has not been reaped
        self._start_ticks = process.start_ticks if process else 0
        self._loop.add_reader(self._stdout, self._guarded, self._on_readable)
        self._loop.call_later(WATCH_S, self._guarded, self._watch)
        for text in (json.dumps(order), *self._early):
            self.order(text)

    def order(self, text: str) -> None:
        """Tell the supervisor, once it has its order; one that is gone is noticed by its stdout closing."""
        if not self.is_open:
            self._early.append(text)
            return
        unsent = memoryview(text.encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self._stdin, unsent) :]

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step that the event loop calls; what it raises is raised by `ended`, once the tree has been killed."""
        try:
            step()
        except Exception as error:  # our own bug: left to the event loop, the end would be waited for for ever
            self._bug = self._bug or error
            self.order("kill")
            if not self.is_open and not self.ended.done():  # no step will follow
                self.ended.set_exception(self._bug)

    def _on_readable(self) -> None:
        chunk = os.read(self._stdout, 1 << 16)
        if not chunk:
            self._close()
            if self._finished is not None:
                self._settle(self._finished)
            else:
                self._rescue_until_s = self._loop.time() + RESCUE_S
                self._rescue()
            return
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["e"] == "terminating":
            self._on_terminating(message["reason"])
        elif message["e"] == "finished":
            self._finished = ProcessEnd(
                message["exit_code"],
                message["signal"],
                message["reason"],
                tuple(message["left_behind"]),
                tuple(message["unkillable"]),
                message["duration_s"],
            )
            if self._finished.unkillable:  # its supervisor stays; nobody waits for it
                self._settle(self._finished)

    def _watch(self) -> None:
        """See to it that the supervisor goes on, whatever its tests do to it, while its end is waited for."""
        if not self.is_open or self.ended.done():
            return
        rescue.keep_going(self.pid, self._start_ticks, is_overdue=self._loop.time() > self._overdue_s)
        self._loop.call_later(WATCH_S, self._guarded, self._watch)

    def _rescue(self) -> None:
        """End what a lost supervisor held, a round now and one later, until nobody is left or time is up."""
        left = rescue.rescue_round(self.means.cgroup, self.spec.marker, self._start_ticks, self._unrelated_pids())
        now_s = self._loop.time()
        if left and now_s < self._rescue_until_s:
            self._loop.call_later(RESCUE_ROUND_S, self._guarded, self._rescue)
            return
        unkillable = tuple(process_tree.describe(process) for process in left)
        self._settle(ProcessEnd(None, None, "supervisor_lost", (), unkillable, now_s - self._started_s))

    def _settle(self, end: ProcessEnd) -> None:
        if self.ended.done():
            return
        if self._bug is not None:
            self.ended.set_exception(self._bug)
        else:
            self.ended.set_result(end)

    def _close(self) -> None:
        """Reap the supervisor, let go of its pipes; an empty supervisor.log is removed."""
        self._loop.remove_reader(self._stdout)
        os.close(self._stdin)
        os.close(self._stdout)
        self.is_open = False
        os.waitpid(self.pid, 0)  # its stdout has closed, so it is going
        self.on_closed(self)
        log = os.path.join(self.spec.directory, "supervisor.log")
        with contextlib.suppress(OSError):  # the tests may have done anything to it
            if os.lstat(log).st_size == 0:
                os.unlink(log)


def _exhaustion_in(errors: Iterable[str]) -> ExhaustedError | None:
    """Return the user's error for probes that failed since processes, memory or descriptors have run out."""
    numbers = [int(number) for error in errors for number in re.findall(r"\[Errno (\d+)\]", error)]
    lacking = next((number for number in numbers if number in LACKING), None)
    return exhaustion_of(OSError(lacking, os.strerror(lacking))) if lacking is not None else None


def probe_backends(wanted: str = "auto") -> ContainmentBackends:
    """Try each tier on this machine, for real; `wanted` must be "auto" or a tier that works.

    Raises HarnessError when the wanted tier, or every tier, is refused; ExhaustedError for lack of processes or memory.
    """
    require_proc()
    pipe = subprocess.PIPE
    with start_python("--probe", stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        out, complaint = process.communicate(timeout=PROBE_S)
    said = complaint.decode(errors="replace").strip().splitlines()[-1:]
    refused = dict.fromkeys(BACKENDS, ": ".join(["its probe gave no answer", *said]))
    for line in out.splitlines():
        answer = json.loads(line)
        refused[answer["tier"]] = answer["error"]
    refused = {backend: error for backend, error in refused.items() if error}
    allowed = [backend for backend in BACKENDS if backend not in refused]
    if wanted == "auto" and allowed:
        stronger = BACKENDS[: BACKENDS.index(allowed[0])]
        return ContainmentBackends(allowed[0], {backend: refused[backend] for backend in stronger})
    if wanted in allowed:
        return ContainmentBackends(wanted, {})
    if exhausted := _exhaustion_in(refused.values()):
        raise exhausted
    raise HarnessError(
        f"this machine does not allow containment {wanted!r}: {refused.get(wanted, '; '.join(refused.values()))}",
        legal=", ".join(["auto", *allowed]),
        remedy=f"--containment {allowed[0]}" if allowed else "run on Linux",
    )
