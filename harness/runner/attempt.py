"""The runner's side of an attempt: starts its supervisor, gives it orders, hears how it ended.

    run() ──Popen──▶ supervisor ("started", "terminating", "finished" as JSON lines on its stdout)
      │ cancel(), kill(): a word on its stdin. The pipe closing (this process died) makes it kill the tree.
      └─ the supervisor's stdout closing without "finished": it was killed, and the tree is ended from here.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import HarnessError
from harness.runner.supervisor import rescue, syscalls
from harness.runner.supervisor.containment import TIERS, cgroup_home

BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.runner.supervisor.main import main; main()"
RESCUE_S = 5.0
RESCUE_ROUND_S = 0.05


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """What a supervisor is told: one command, its files, its limits."""

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
    """From SIGINT to SIGKILL, with SIGTERM half-way."""
    unkillable_after_s: float = 10.0
    """How long SIGKILL may take before what is left counts as unkillable."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended."""

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
    own_cpu_s: float = 0.0
    """Processor time of the supervisor itself."""


class Supervisor(Protocol):
    """Whatever can carry out an attempt."""

    async def run(self, spec: AttemptSpec) -> AttemptEnd:
        """Carry it out to its proven end; cancelling the task kills the tree first."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """What the probe found: the strongest tier this machine allows, and why the stronger ones are refused."""

    chosen: str
    refused: dict[str, str]


class Supervisors:
    """Makes supervisors on this machine and knows which attempts are alive."""

    def __init__(self, tier: str, run_id: str, py_spy: str = "") -> None:
        syscalls.become_subreaper()  # orphans of a killed supervisor come to us
        self._tier = tier
        self._cgroup_prefix = f"{cgroup_home()}/rlharness-{run_id}" if tier == "cgroup" else ""
        self._py_spy = py_spy
        self._live: dict[str, _Attempt] = {}
        self.own_cpu_s = 0.0

    async def run(self, spec: AttemptSpec, on_terminating: Callable[[str], None] = lambda reason: None) -> AttemptEnd:
        """Carry out one attempt; `on_terminating` hears the reason when its tree begins to be ended.

        Cancelling the task kills the tree, waits until none of it lives, then lets the cancellation through.
        """
        cgroup = f"{self._cgroup_prefix}-{os.path.basename(spec.marker)}" if self._cgroup_prefix else ""
        attempt = _Attempt(spec, self._tier, cgroup, self._py_spy, on_terminating)
        self._live[spec.marker] = attempt
        try:
            attempt.start()
            try:
                end = await asyncio.shield(attempt.ended)
            except asyncio.CancelledError:
                attempt.order("kill")
                await attempt.ended
                raise
            finally:
                attempt.close()
            if end.reason == "supervisor_lost":
                end = await self._rescue(attempt, end)
            self.own_cpu_s += end.own_cpu_s
            return end
        finally:
            del self._live[spec.marker]

    def cancel(self, marker: str) -> None:
        """End the attempt in order: SIGINT, SIGTERM, SIGKILL."""
        if attempt := self._live.get(marker):
            attempt.order("cancel")

    def kill(self, marker: str) -> None:
        """End the attempt at once."""
        if attempt := self._live.get(marker):
            attempt.order("kill")

    async def _rescue(self, attempt: "_Attempt", end: AttemptEnd) -> AttemptEnd:
        left: list[str] = []
        for _ in range(int(RESCUE_S / RESCUE_ROUND_S)):
            spare = frozenset(a.pid for a in self._live.values() if a is not attempt)
            left = [f"{p.pid} {p.state} {p.name}" for p in rescue.rescue_round(attempt.cgroup, attempt.spec.marker, spare)]
            if not left:
                break
            await asyncio.sleep(RESCUE_ROUND_S)
        return AttemptEnd(
            end.exit_code, end.signal, end.reason, end.left_behind, tuple(left), end.duration_s, end.own_cpu_s
        )


class _Attempt:
    """One supervisor process and what it has said so far."""

    def __init__(
        self, spec: AttemptSpec, tier: str, cgroup: str, py_spy: str, on_terminating: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.cgroup = cgroup
        self._tier = tier
        self._py_spy = py_spy
        self._on_terminating = on_terminating
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self.ended: asyncio.Future[AttemptEnd] = self._loop.create_future()
        self._heard = b""
        self._finished: AttemptEnd | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
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
            "tier": self._tier,
            "cgroup": self.cgroup,
            "py_spy": self._py_spy,
        }
        with open(os.path.join(spec.directory, "supervisor.log"), "wb") as log:
            self._process = _spawn([], log.fileno())
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._loop.add_reader(self._process.stdout.fileno(), self._on_readable)
        self.order(json.dumps(order))

    def order(self, text: str) -> None:
        """Tell the supervisor; one that is gone is noticed by its stdout closing."""
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def _on_readable(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        chunk = self._process.stdout.read(1 << 16)
        if not chunk:
            self._loop.remove_reader(self._process.stdout.fileno())
            self._process.wait()
            self._settle(self._finished or self._lost())
            return
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["e"] == "terminating":
            self._on_terminating(message["reason"])
        elif message["e"] == "finished":
            self._finished = AttemptEnd(
                message["exit_code"],
                message["signal"],
                message["reason"],
                tuple(message["left_behind"]),
                tuple(message["unkillable"]),
                message["duration_s"],
                message["own_cpu_s"],
            )
            if self._finished.unkillable:  # its supervisor stays; nobody waits for it
                self._settle(self._finished)

    def _lost(self) -> AttemptEnd:
        return AttemptEnd(None, None, "supervisor_lost", (), (), self._loop.time() - self._started_s)

    def _settle(self, end: AttemptEnd) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def close(self) -> None:
        """Let go of the pipes; an empty supervisor.log is removed."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                if pipe is self._process.stdout:
                    self._loop.remove_reader(pipe.fileno())
                pipe.close()
        log = Path(self.spec.directory, "supervisor.log")
        if log.exists() and log.stat().st_size == 0:
            log.unlink()


def _spawn(arguments: list[str], stderr: int) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BOOT, root, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def probe_tiers(wanted: str = "auto") -> Tiers:
    """Try each tier on this machine, for real; `wanted` other than "auto" must be one that works.

    Raises HarnessError when the wanted tier, or every tier, is refused.
    """
    process = _spawn(["--probe"], subprocess.DEVNULL)
    out, _ = process.communicate(timeout=30)
    refused: dict[str, str] = {}
    for line in out.splitlines():
        message = json.loads(line)
        if "tier" in message:
            refused[message["tier"]] = message["error"]
    allowed = [tier for tier in TIERS if tier not in refused]
    if wanted == "auto" and allowed:
        return Tiers(allowed[0], {tier: why for tier, why in refused.items() if TIERS.index(tier) < TIERS.index(allowed[0])})
    if wanted in allowed:
        return Tiers(wanted, {})
    raise HarnessError(
        f"this machine does not allow containment {wanted!r}: {refused.get(wanted, '; '.join(refused.values()))}",
        legal=", ".join(["auto", *allowed]),
        remedy=f"--containment {allowed[0]}" if allowed else "run on Linux",
    )
