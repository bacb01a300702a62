"""An event loop whose time passes at once: a sleep of a day ends as soon as nothing else is left to do.

The selector is where a loop waits, so this one advances the time instead. Everything on the loop follows: sleeps,
timeouts, `call_later`. Threads do not, so nothing on such a loop may wait for one.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """A selector that does not wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let `timeout` seconds pass. RuntimeError if nothing will ever happen."""
        ready = super().select(0)
        if timeout is None and not ready:
            raise RuntimeError("every task waits, and none for the time to pass")
        if not ready:
            self.now_s += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with a time of its own, from 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class VirtualClock:
    """The time of a virtual loop, as a `harness.core.clock.Clock`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._loop.time())


def run_virtually(work: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run `work` to its end on a loop, and close that."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)
