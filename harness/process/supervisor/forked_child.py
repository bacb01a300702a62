"""A child that a leader forks for one task: signalled, waited for, and swept of every process that it leaves."""

import contextlib
import os
import select
import signal
from collections.abc import Collection, Iterator

from harness.process.clock import Clock
from harness.process.supervisor import process_tree

SETTLE_S = 1.0
"""Seconds that processes of an ended child have to end by themselves."""
ROUND_S = 0.01
REAP_ROUND_S = 0.0005


class ForkedChild:
    """A child of this process, which is a subreaper, so that orphans of the child come to it.

    `own_pids` are the children that this process had before, which are not touched.
    """

    def __init__(self, pid: int, own_pids: Collection[int], clock: Clock) -> None:
        self.pid = pid
        self.status: int | None = None
        """The wait status, once it has been reaped."""
        self._own_pids = own_pids
        self._clock = clock

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended; it is then reaped."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def signal(self, signum: int) -> None:
        """Send a signal to the child, if it has not ended."""
        if not self.has_ended:
            os.kill(self.pid, signum)

    def reap(self, limit_s: float | None) -> int:
        """Wait for the end of the child, and kill it after `limit_s`; return its exit code, negative for a signal."""
        until_s = None if limit_s is None else self._clock.monotonic_s() + limit_s
        while not self.has_ended:
            if until_s is not None and self._clock.monotonic_s() >= until_s:
                self.signal(signal.SIGKILL)
            select.select([], [], [], REAP_ROUND_S)
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    def tree(self) -> list[process_tree.Process]:
        """Return the processes below this one that are not its own."""
        return [process for process in process_tree.descendants(os.getpid()) if process.pid not in self._own_pids]

    def sweep(self) -> list[str]:
        """Kill what an ended child has left until nothing of it lives; return each as "pid state command"."""
        found: dict[int, str] = {}
        until_s = self._clock.monotonic_s() + SETTLE_S
        while left := list(self._orphans()):
            if self._clock.monotonic_s() >= until_s:
                for process in left:
                    found.setdefault(process.pid, process_tree.describe(process))
                    process_tree.send_signal(process, signal.SIGKILL)
            select.select([], [], [], ROUND_S)
        return list(found.values())

    def _orphans(self) -> Iterator[process_tree.Process]:
        """Yield living children of this process that are not its own; those that have ended are reaped."""
        if not self._own_pids:  # then a look at /proc, which takes milliseconds, is seldom needed
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                yield from process_tree.children(os.getpid())
            return
        for process in process_tree.children(os.getpid()):
            if process.pid not in self._own_pids:
                if process.is_zombie:
                    os.waitpid(process.pid, os.WNOHANG)
                else:
                    yield process
