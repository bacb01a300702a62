"""Supervisors that wait for an order with a leader that they have forked and hold already.

Forking a leader from a parent with large imports, and moving it into its control group, takes some 30 ms, in which its
CPU slot has nothing else to do. So the next one is forked while tests run.

    fork_next() ──▶ supervisor: holds a leader, which waits ──take()──▶ its order is an attempt's
                        └─ killed: dismissed, as all are at close()
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.process.supervisor import process_tree, rescue
from harness.process.supervisor.fork_server import Forked

CLOSE_S = 2.0


class Parent(Protocol):
    """A process from which leaders are forked that share what it has imported."""

    @property
    def pid(self) -> int:
        """Its number; 0 once it has ended."""

    async def fork(self, stderr: int) -> Forked | None:
        """Fork a supervisor, a child of this process; None where it cannot."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A supervisor that waits for its order."""

    forked: Forked
    cgroup: str
    """The control group's directory, which it makes; empty in other tiers."""
    start_ticks: int = 0
    """When the supervisor started, as /proc counts."""
    is_parents: bool = True
    """Whether it was forked from a `Parent`."""

    def send(self, order: Mapping[str, Any]) -> None:
        """Send it an order; one that is gone is noticed by its stdout closing."""
        unsent = memoryview(json.dumps(order).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self.forked.stdin, unsent) :]


class LeadersAhead:
    """At most one supervisor that waits, and those that were dismissed and have not ended yet."""

    def __init__(self, tier: str, cgroup_prefix: str, unrelated_pids: Callable[[], frozenset[int]]) -> None:
        """`unrelated_pids` are the children of this process that no attempt has left."""
        self._tier, self._cgroup_prefix, self._unrelated_pids = tier, cgroup_prefix, unrelated_pids
        self._num_forked = 0
        self._forking: asyncio.Task[None] | None = None
        self._ending: list[Waiting] = []
        self.waiting: Waiting | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Supervisors that have not been reaped."""
        return tuple(each.forked.pid for each in (self.waiting, *self._ending) if each is not None)

    def take(self) -> Waiting | None:
        """Return the supervisor that waits; None without one, or if it was killed."""
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            return None
        if rescue.has_ended(waiting.forked.pid):
            self._dismiss(waiting)
            return None
        return waiting

    def fork_next(self, parent: Parent) -> None:
        """Have `parent` fork the next one, soon."""
        if self._forking is None or self._forking.done():
            self._forking = asyncio.create_task(self._fork(parent))

    async def settled(self) -> None:
        """Wait until none is being forked."""
        if self._forking is not None:
            await self._forking

    def close(self) -> None:
        """End all of them, and their leaders."""
        if self._forking is not None:
            self._forking.cancel()
        if self.waiting is not None:
            self._dismiss(self.waiting)
            self.waiting = None
        while self._ending:
            self._reap(self._ending.pop(), CLOSE_S)

    async def _fork(self, parent: Parent) -> None:
        self._num_forked += 1
        cgroup = f"{self._cgroup_prefix}-ahead-{self._num_forked}" if self._cgroup_prefix else ""
        with open(os.devnull, "wb") as log:
            forked = await parent.fork(log.fileno())
        if forked is not None:
            process = process_tree.read_process(forked.pid)
            self.waiting = Waiting(forked, cgroup, process.start_ticks if process else 0)
            self.waiting.send({"tier": self._tier, "cgroup": cgroup})

    def _dismiss(self, waiting: Waiting) -> None:
        for each in [each for each in self._ending if rescue.has_ended(each.forked.pid)]:
            self._ending.remove(each)
            self._reap(each)
        self._ending.append(waiting)
        os.close(waiting.forked.stdin)
        os.close(waiting.forked.stdout)

    def _reap(self, waiting: Waiting, patience_s: float = 0.0) -> None:
        """Reap one; if it was killed, end its leader, which has become a child of this process."""
        if not rescue.reap(waiting.forked.pid, patience_s):
            rescue.end_orphans(waiting.cgroup, waiting.start_ticks, self._unrelated_pids())
