"""The runner's side of an attempt: gives it to a supervisor, sends that orders and receives its end.

    run() ──order──▶ supervisor ("taken", "terminating", "finished" as JSON lines on its stdout)
      │ cancel(), kill(): a word on its stdin. The pipe closing (this process died) makes it kill the tree.
      ├─ a supervisor that was stopped is continued, one that is overdue is killed.
      ├─ the supervisor's stdout closing without "finished": it was killed, and the tree is ended from here.
      ├─ "finished" with an unkillable process: the supervisor stays until it ends, and is then reaped.
      └─ "finished" without one: the supervisor waits for its next attempt.

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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from harness.bits.errors import ExhaustedError, HarnessError
from harness.bits.files import open_for_writing
from harness.process.clock import ticks_since_boot
from harness.process.exhaustion import exhaustion_of
from harness.process.scratch import require_proc
from harness.process.supervisor import process_tree, rescue, syscalls
from harness.process.supervisor.containment import BACKENDS, cgroup_home
from harness.process.supervisor.fork_server import Forked

BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.process.supervisor.main import main; main()"
PROBE_S = 30.0
LACKING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a probe that say that processes, memory or descriptors have run out, and nothing of the machine."""
RESCUE_S = 5.0
RESCUE_ROUND_S = 0.05
WATCH_S = 1.0
ENDING_S = 5.0
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
        self._backend = backend
        self._cgroup_prefix = f"{cgroup_home()}/rlharness-{run_id}" if backend == "cgroup" else ""
        self._py_spy = py_spy
        self._live: dict[str, _Attempt] = {}
        self._supervisors: set[_Supervisor] = set()
        self._idle: list[_Supervisor] = []
        self.parent: Parent | None = None
        """Where the leader of a spec with a `session` is forked from; None to start a program for each."""

    def close(self) -> None:
        """End the supervisors without an attempt, and make no more; those that stay with the unkillable are left."""
        while self._idle:
            self._idle.pop().close()

    async def run(self, spec: ProcessSpec, on_terminating: Callable[[str], None] = lambda reason: None) -> ProcessEnd:
        """Carry out one attempt; `on_terminating` hears the reason when its tree begins to be ended.

        Cancelling the task kills the tree, waits until none of it lives, then lets the cancellation through.
        """
        attempt = self._live[spec.marker] = _Attempt(spec, on_terminating, self._unrelated_pids)
        try:
            while (end := await self._end_of(attempt)) is None:
                pass
        finally:
            del self._live[spec.marker]
        return end

    async def _end_of(self, attempt: "_Attempt") -> ProcessEnd | None:
        """Return the end of an attempt; None where its supervisor was lost before it had taken the order."""
        supervisor = await self._supervisor(attempt.spec)
        cancelled: asyncio.CancelledError | None = None
        attempt.start(supervisor, self._order(attempt.spec, supervisor))
        while not attempt.ended.done():
            try:
                await asyncio.shield(attempt.ended)
            except asyncio.CancelledError as error:  # however often: the tree comes first
                cancelled = error
                attempt.say("kill")
        try:
            end = attempt.ended.result()
        finally:
            if attempt.has_finished:
                self._idle.append(supervisor)
            if attempt.has_finished or not supervisor.is_open:  # else it stays with the unkillable
                self._let_go(attempt)
            else:
                attempt.on_closed = lambda: self._let_go(attempt)
        if cancelled is not None:
            raise cancelled
        return end

    def _let_go(self, attempt: "_Attempt") -> None:
        """Forget a supervisor that has been reaped; an empty supervisor.log is removed."""
        self._supervisors = {each for each in self._supervisors if each.is_open}
        with contextlib.suppress(OSError):  # the tests may have done anything to it
            if os.lstat(log := os.path.join(attempt.spec.directory, "supervisor.log")).st_size == 0:
                os.unlink(log)

    def cancel(self, marker: str) -> None:
        """End the attempt in order: SIGINT, SIGTERM, SIGKILL."""
        if attempt := self._live.get(marker):
            attempt.say("cancel")

    def kill(self, marker: str) -> None:
        """End the attempt at once."""
        if attempt := self._live.get(marker):
            attempt.say("kill")

    def pid_of(self, marker: str) -> int:
        """Return the supervisor of an attempt, below which its processes are; 0 while it has none."""
        attempt = self._live.get(marker)
        return attempt.supervisor.pid if attempt and attempt.is_started and attempt.supervisor.is_open else 0

    async def _supervisor(self, spec: ProcessSpec) -> "_Supervisor":
        """Return a supervisor without an attempt: for a `session` one that was forked from the parent, if it can be."""
        parent = self.parent if spec.session is not None else None
        while True:
            if found := next((each for each in self._idle if each.is_parents == (parent is not None)), None):
                self._idle.remove(found)
                return found
            with open_for_writing(os.path.join(spec.directory, "supervisor.log")) as log:
                forked = await parent.fork(log.fileno()) if parent is not None else _started(log.fileno())
            if forked is not None:
                supervisor = _Supervisor(forked, is_parents=parent is not None)
                self._supervisors.add(supervisor)
                return supervisor
            parent = None

    def _order(self, spec: ProcessSpec, supervisor: "_Supervisor") -> str:
        cgroup = f"{self._cgroup_prefix}-{os.path.basename(spec.marker)}" if self._cgroup_prefix else ""
        means = {"tier": self._backend, "cgroup": cgroup, "py_spy": self._py_spy}
        given = {each.name: getattr(spec, each.name) for each in fields(spec)}
        return json.dumps(given | means | ({"env": None} if supervisor.is_parents else {"session": None}))

    def _unrelated_pids(self) -> frozenset[int]:
        """The parent and the supervisors that live: no orphans of a lost one."""
        parent = (self.parent.pid,) if self.parent is not None and self.parent.pid else ()
        return frozenset((*parent, *(each.pid for each in self._supervisors if each.is_open)))


def _python(*arguments: str) -> list[str]:
    """The command of a Python with the package `supervisor` and nothing else in it."""
    bytecode = ["-B"] if sys.dont_write_bytecode else []  # -I does not read the variable that says so
    return [sys.executable, "-I", "-S", *bytecode, "-c", BOOT, str(Path(__file__).parents[2]), *arguments]


def _started(stderr: int) -> Forked:
    """Start a supervisor in an interpreter of its own. OSError where there is no process or file to be had."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(_python(), stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True)
    process.returncode = 0  # it is reaped elsewhere
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        return Forked(process.pid, os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))


class _Supervisor:
    """A supervisor process, a child of this one, and our ends of its pipes."""

    def __init__(self, forked: Forked, *, is_parents: bool) -> None:
        self.pid, self.stdin, self.stdout = forked
        self.is_parents = is_parents
        """Whether it was forked from the parent, so that its leaders can be."""
        process = process_tree.read_process(self.pid)  # cannot be gone: it has not been reaped
        self.start_ticks = process.start_ticks if process else 0
        self.num_attempts = 0
        self.is_open = True
        """Whether it has not been reaped."""

    def close(self) -> None:
        """Let go of its pipes, at which it ends, and reap it."""
        os.close(self.stdin)
        os.close(self.stdout)
        self.is_open = False
        rescue.reap(self.pid, ENDING_S)


class _Attempt:
    """One attempt, and what its supervisor has said so far."""

    def __init__(
        self, spec: ProcessSpec, on_terminating: Callable[[str], None], unrelated_pids: Callable[[], frozenset[int]]
    ) -> None:
        self.spec = spec
        self._on_terminating = on_terminating
        self._unrelated_pids = unrelated_pids
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._overdue_s = self._started_s + spec.timeout_s + spec.grace_s + spec.unkillable_after_s + OVERDUE_S
        self._rescue_until_s = 0.0
        self._since_ticks = 0
        self.ended: asyncio.Future[ProcessEnd | None]
        """None where the supervisor was lost before it had taken the order."""
        self.supervisor: _Supervisor
        self.is_started = False
        self.has_finished = False
        """Whether the supervisor can have the next attempt."""
        self.on_closed: Callable[[], None] = lambda: None
        self._cgroup = ""
        self._said: list[str] = []
        self._heard = b""
        self._is_taken = False
        self._end: ProcessEnd | None = None
        self._bug: Exception | None = None

    def start(self, supervisor: _Supervisor, order: str) -> None:
        """Give its order to the supervisor."""
        self.supervisor, self.ended, self._heard = supervisor, self._loop.create_future(), b""
        self.is_started = True
        supervisor.num_attempts += 1
        self._since_ticks = ticks_since_boot()
        self._cgroup = json.loads(order)["cgroup"]
        self._loop.add_reader(supervisor.stdout, self._guarded, self._on_readable)
        self._loop.call_later(WATCH_S, self._guarded, self._watch)
        for text in (order, *self._said):
            self._send(text)

    def say(self, word: str) -> None:
        """Tell the supervisor, once it has its order."""
        self._said.append(word)
        if self.is_started:
            self._send(word)

    def _send(self, text: str) -> None:
        """Write a line; a supervisor that is gone is noticed by its stdout closing."""
        unsent = memoryview(text.encode() + b"\n" if self.supervisor.is_open else b"")
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self.supervisor.stdin, unsent) :]

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step that the event loop calls; what it raises is raised by `ended`, once the tree has been killed."""
        try:
            step()
        except Exception as error:  # our own bug: left to the event loop, the end would be waited for for ever
            self._bug = self._bug or error
            self._send("kill")
            if not self.supervisor.is_open and not self.ended.done():  # no step will follow
                self.ended.set_exception(self._bug)

    def _on_readable(self) -> None:
        chunk = os.read(self.supervisor.stdout, 1 << 16)
        if not chunk:
            self._on_lost()
            return
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))

    def _on_lost(self) -> None:
        """Reap the supervisor, and see to what it held."""
        supervisor = self.supervisor
        self._loop.remove_reader(supervisor.stdout)
        supervisor.close()
        self.on_closed()
        if self._end is not None:
            self._settle(self._end)
        elif supervisor.num_attempts > 1 and not self._is_taken:
            self._settle(None)
        else:
            self._rescue_until_s = self._loop.time() + RESCUE_S
            self._rescue()

    def _on_message(self, message: dict[str, Any]) -> None:
        match message.pop("e"):
            case "taken":
                self._is_taken = True
            case "terminating":
                self._on_terminating(message["reason"])
            case "finished":
                left = {name: tuple(message[name]) for name in ("left_behind", "unkillable")}
                self._end = ProcessEnd(**message | left)
                if not self._end.unkillable:  # else its supervisor stays, and no caller waits for it
                    self.has_finished = True
                    self._loop.remove_reader(self.supervisor.stdout)
                self._settle(self._end)

    def _watch(self) -> None:
        """See to it that the supervisor goes on, whatever its tests do to it, while its end is waited for."""
        if self.ended.done() or not self.supervisor.is_open:
            return
        is_overdue = self._loop.time() > self._overdue_s
        rescue.keep_going(self.supervisor.pid, self.supervisor.start_ticks, is_overdue=is_overdue)
        self._loop.call_later(WATCH_S, self._guarded, self._watch)

    def _rescue(self) -> None:
        """End what a lost supervisor held, a round now and one later, until none is left or time is up."""
        left = rescue.rescue_round(self._cgroup, self.spec.marker, self._since_ticks, self._unrelated_pids())
        now_s = self._loop.time()
        if left and now_s < self._rescue_until_s:
            self._loop.call_later(RESCUE_ROUND_S, self._guarded, self._rescue)
            return
        unkillable = tuple(process_tree.describe(process) for process in left)
        self._settle(ProcessEnd(None, None, "supervisor_lost", (), unkillable, now_s - self._started_s))

    def _settle(self, end: ProcessEnd | None) -> None:
        if self.ended.done():
            return
        if self._bug is not None:
            self.ended.set_exception(self._bug)
        else:
            self.ended.set_result(end)


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
    null = subprocess.DEVNULL
    with subprocess.Popen(_python("--probe"), stdin=null, stdout=pipe, stderr=pipe, start_new_session=True) as process:
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
