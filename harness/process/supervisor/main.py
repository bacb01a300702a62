"""A supervisor: it carries out one attempt after another, each from the runner's order to the proof that none of its
processes lives.

    RUNNING ──leader ended──▶ SETTLING ──none left──▶ done
       │                         └──some left──▶ KILLING
       └─a limit, "cancel"──▶ TERMINATING: stacks, SIGINT, half the grace, SIGTERM, the other half ──▶ KILLING
    KILLING: SIGKILL to all, again and again ──none left──▶ done
       └─some left after `unkillable_after_s`──▶ reported as an outcome; this process stays until they are gone

One thread, one loop, woken by its two pipes (orders, SIGCHLD) and by the next deadline. The end of its orders is that
of the runner: then it kills the tree and ends.
"""

import contextlib
import json
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NoReturn

from harness.bits.files import UNLIMITED, open_for_writing
from harness.process.clock import Clock, SystemClock
from harness.process.growing_file import GrowingFile, GrowingLines
from harness.process.supervisor import process_tree, stacks
from harness.process.supervisor.containment import (
    BACKENDS,
    Subreaper,
    cgroup_home,
    make_containment,
    restore_signals,
)
from harness.process.supervisor.deadlines import Deadlines

POLL_S = 0.2  # how often the report is read and limits are looked at
KILL_ROUND_S = 0.05
UNKILLABLE_POLL_S = 1.0
PROBE_S = 5.0
PROBE_ROUND_S = 0.002
KINDS_WITH_LIMITS = tuple(f'"{kind}"'.encode() for kind in ("start", "end", "collected", "finish", "forked"))
SETTLE_S = 1.0  # daemons that are already going (Ray's) are given this long before they count as left behind


Lead = Callable[[dict[str, Any]], NoReturn]
"""What the leader of an order becomes instead of a program, with its files and working directory arranged."""


class Phase(Enum):
    """Where an attempt stands; see the module's drawing."""

    RUNNING = "running"
    SETTLING = "settling"
    TERMINATING = "terminating"
    KILLING = "killing"
    UNKILLABLE = "unkillable"


class Inbox:
    """What the runner says: an order in JSON, and for the attempt that goes on the words "cancel" and "kill"."""

    def __init__(self) -> None:
        self.is_open = True
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def next_order(self) -> bytes:
        """Wait for an order; words that came too late for their attempt are left out. Empty once the runner is gone."""
        while self.is_open:
            if not self._lines:
                self.read()
            elif (line := self._lines.popleft()).startswith(b"{"):
                return line
        return b""

    def words(self) -> Iterator[bytes]:
        """Take what has been read."""
        while self._lines:
            yield self._lines.popleft()

    def read(self) -> None:
        """Read what there is, once; waits for it."""
        chunk = os.read(0, 1 << 16)
        self.is_open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += lines


class Attempt:
    """One attempt: its order (see `supervisor_client.ProcessSpec`), its containment, and the phase it is in."""

    def __init__(
        self, order: dict[str, Any], containment: Subreaper, clock: Clock, inbox: Inbox, lead: Lead | None
    ) -> None:
        self.order = order
        self.lead = lead
        self.containment = containment
        self.clock = clock
        self.inbox = inbox
        self.started_s = clock.monotonic_s()
        self.deadlines = Deadlines(self.started_s, order["timeout_s"], order["startup_timeout_s"])
        self.phase = Phase.RUNNING
        self.phase_since_s = self.started_s
        self.reason = ""
        self.sent_term = False
        self.left_behind: list[str] = []
        report = os.path.join(order["directory"], "report.jsonl")
        self.report = GrowingLines(GrowingFile(report, max_bytes=UNLIMITED))

    def start(self) -> None:
        """Fork the leader."""
        self.read_report(self.started_s)  # opened before the tests can put anything in its place
        self.containment.spawn(lambda: become_leader(self.order, self.lead))

    def step(self) -> bool:
        """Look at everything once and act; whether the attempt is over."""
        now_s = self.clock.monotonic_s()
        self.containment.reap()
        self.read_report(now_s)
        if self.containment.is_gone:
            return True
        if self.phase is Phase.RUNNING:
            if self.containment.leader_status is not None:
                self.enter(Phase.SETTLING)
            elif reason := self.deadlines.expired(now_s):
                self.terminate(reason)
        elif self.phase is Phase.SETTLING and now_s >= self.phase_since_s + SETTLE_S:
            self.left_behind = self.name_the_living()
            self.enter(Phase.KILLING)
        elif self.phase is Phase.TERMINATING:
            self.escalate(now_s)
        if self.phase in (Phase.KILLING, Phase.UNKILLABLE):
            self.containment.kill()
            limits = now_s - self.phase_since_s, self.order["unkillable_after_s"]
            if self.phase is Phase.KILLING and process_tree.is_unkillable(*limits, self.containment.alive):
                self.say_finished(unkillable=self.name_the_living())
                self.enter(Phase.UNKILLABLE)
        return False

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.phase_since_s = self.clock.monotonic_s()

    def terminate(self, reason: str) -> None:
        """Begin the ordered end: stacks while everything still stands, then SIGINT so that pytest can report."""
        if self.phase is not Phase.RUNNING:
            return
        self.reason = reason
        say({"e": "terminating", "reason": reason})
        if reason != "cancelled":
            self.dump_stacks()
        self.containment.signal_leader(signal.SIGINT)
        self.enter(Phase.TERMINATING)

    def dump_stacks(self) -> None:
        """Write the stacks of the tree to stacks.txt; a full disk does not stop the kill."""
        path = os.path.join(self.order["directory"], "stacks.txt")
        try:
            stacks.dump_stacks(self.containment.alive(), path, self.order["py_spy"], self.clock)
        except OSError as error:
            complain(f"cannot write {path}: {error}")

    def escalate(self, now_s: float) -> None:
        """SIGTERM at half the grace, SIGKILL at its end or as soon as the leader has gone."""
        elapsed_s = now_s - self.phase_since_s
        if elapsed_s >= self.order["grace_s"] or self.containment.leader_status is not None:
            self.enter(Phase.KILLING)
        elif elapsed_s >= self.order["grace_s"] / 2 and not self.sent_term:
            self.sent_term = True
            self.containment.signal_all(signal.SIGTERM)

    def kill(self) -> None:
        """Go straight to SIGKILL."""
        if self.phase not in (Phase.KILLING, Phase.UNKILLABLE):
            self.reason = self.reason or "killed"
            self.enter(Phase.KILLING)

    def name_the_living(self) -> list[str]:
        """Who is alive while the tree is not gone: never empty, though some come and go faster than one can look."""
        return [process_tree.describe(p) for p in self.containment.alive()] or ["a process that /proc did not show"]

    def wait(self, wake_fd: int) -> None:
        """Sleep until something happens: an order, an ended child, or the next moment to look."""
        pause_s = {Phase.KILLING: KILL_ROUND_S, Phase.SETTLING: KILL_ROUND_S, Phase.UNKILLABLE: UNKILLABLE_POLL_S}
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        if self.inbox.is_open:
            poll.register(0, select.POLLIN)
        for fd, _ in poll.poll(pause_s.get(self.phase, POLL_S) * 1000):
            if fd == wake_fd:
                self.on_signals(os.read(wake_fd, 512))
            else:
                self.inbox.read()
                self.heed()

    def on_signals(self, signums: bytes) -> None:
        """Kill the tree when this process gets a signal to end: it has no other task, and the runner sends none."""
        if any(signum != signal.SIGCHLD for signum in signums):
            self.reason = self.reason or "supervisor_lost"
            self.kill()

    def heed(self) -> None:
        """Act on what the runner has said; its end of the pipe closing means that it is gone."""
        for word in self.inbox.words():
            if word == b"cancel":
                self.terminate("cancelled")
            elif word == b"kill":
                self.kill()
        if not self.inbox.is_open:
            self.kill()

    def read_report(self, now_s: float) -> None:
        """Feed the report's new whole lines to the deadlines."""
        try:
            lines = self.report.poll()
        except OSError:
            return  # the limits that hold already go on to hold
        for line in lines:
            if any(kind in line[:24] for kind in KINDS_WITH_LIMITS):  # an "end" may carry a long text: look first
                self.observe(line, now_s)

    def observe(self, line: bytes, now_s: float) -> None:
        """Take one line of the report into account; a test may have written anything into our file."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return  # the reader of results says so
        if isinstance(record, dict):
            self.deadlines.observe(record, now_s)

    def say_finished(self, unkillable: list[str] | None = None) -> None:
        """The last word for the runner, once."""
        status = self.containment.leader_status
        code = os.waitstatus_to_exitcode(status) if status is not None else None
        say(
            {
                "e": "finished",
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "reason": self.reason,
                "left_behind": self.left_behind,
                "unkillable": unkillable or [],
                "duration_s": self.clock.monotonic_s() - self.started_s,
            }
        )


def become_leader(order: dict[str, Any], lead: Lead | None) -> NoReturn:
    """In the forked child: a session of its own, output to the attempt's file, then the program, or `lead`."""
    try:
        os.setsid()
        if lead is None or order["session"] is None:  # else it has handlers of its own
            restore_signals()
        if order["pid_file"]:
            with contextlib.suppress(OSError), open(order["pid_file"], "w", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
        stdin = os.open(order["stdin"], os.O_RDONLY)
        log = open_for_writing(os.path.join(order["directory"], "output.log"), appends=True)
        os.dup2(stdin, 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.chdir(order["cwd"])
        if lead is not None and order["session"] is not None:
            lead(order)
        os.execve(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        complain(f"cannot start {order['argv'][0]}: {error}")
    finally:
        os._exit(127)


def complain(text: str) -> None:
    """A line for supervisor.log, if it can take one."""
    with contextlib.suppress(OSError):
        os.write(2, f"rlharness: {text}\n".encode())


def say(message: dict[str, Any]) -> None:
    """A line for the runner; a runner that is gone hears nothing, and that is no error."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def probe(home: Callable[[], str] = cgroup_home) -> None:
    """Say of each tier why this machine refuses it, "" if not, by holding and killing a real process with it."""
    for backend in BACKENDS:
        pid = os.fork()  # each in a process of its own: a containment is for one tree
        if pid == 0:
            code = 1
            try:
                probe_backend(backend, f"{home()}/rlharness-probe-{os.getpid()}" if backend == "cgroup" else "")
                code = 0
            except OSError as error:
                say({"tier": backend, "error": str(error)})
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != 1:
            say({"tier": backend, "error": f"its probe exited with {code}" if code else ""})


def probe_backend(backend: str, cgroup_directory: str) -> None:
    """Hold a process with one tier and end it; OSError where that cannot be done."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + PROBE_S
    containment = make_containment(backend, cgroup_directory)
    try:
        containment.spawn(sleep_for_ever)
        while not containment.is_gone:
            if clock.monotonic_s() > until_s:
                raise OSError(f"a process outlived SIGKILL for {PROBE_S:g} s")
            containment.kill()
            containment.reap()
            select.select([], [], [], PROBE_ROUND_S)
    finally:
        containment.close()


def sleep_for_ever() -> NoReturn:
    """The program that a probe holds."""
    while True:
        signal.pause()


def main() -> None:
    """Be a supervisor, or, with --probe, say which tiers this machine allows."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if "--probe" in sys.argv:
        probe()
    else:
        supervise()


def supervise(lead: Lead | None = None) -> None:
    """The life of a supervisor: carry out orders from standard input. `lead` is the leader of an order to fork."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    inbox, clock = Inbox(), SystemClock()
    while line := inbox.next_order():
        order = json.loads(line)
        with open_for_writing(os.path.join(order["directory"], "supervisor.log"), appends=True) as log:
            os.dup2(log.fileno(), 2)
        containment = make_containment(order["tier"], order["cgroup"])
        say({"e": "taken"})
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 1 << 16)  # of the attempt before
        attempt = Attempt(order, containment, clock, inbox, lead)
        try:
            attempt.start()
            attempt.heed()
            while not attempt.step():
                attempt.wait(wake_read)
        finally:
            attempt.report.file.close()
            containment.close()
        if attempt.phase is Phase.UNKILLABLE:  # its end has been said
            return
        attempt.say_finished()  # last: from now on this process can be killed, and leaves nothing
