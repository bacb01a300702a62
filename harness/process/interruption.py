"""The signals that end or question a run, heard from before the machine is read until after the last report.

    SIGUSR1 ──▶ on_dump
    the others ─┬─ on_cancel is set (a dispatcher runs): it decides
                └─ else: what is awaited under `unless_interrupted` is cancelled

One that was ignored when the process started (nohup, a shell's background job) stays ignored.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

CANCEL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DUMP_SIGNAL = signal.SIGUSR1


class Interruption:
    """Listens to the signals of this process while it is entered, inside a running event loop."""

    def __init__(self) -> None:
        self.by = ""
        """Name of the first signal that asked for the end; empty for none."""
        self.on_cancel: Callable[[str], None] | None = None
        self.on_dump: Callable[[], None] = lambda: None
        self._task: asyncio.Task[Any] | None = None
        self._heard: list[signal.Signals] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for signum in (*CANCEL_SIGNALS, DUMP_SIGNAL):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                loop.add_signal_handler(signum, self.on_signal, signum)
                self._heard.append(signum)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for signum in self._heard:
            loop.remove_signal_handler(signum)

    def on_signal(self, signum: signal.Signals) -> None:
        """Act on one signal."""
        if signum is DUMP_SIGNAL:
            self.on_dump()
            return
        self.by = self.by or signum.name
        if self.on_cancel is not None:
            self.on_cancel(signum.name)
        elif self._task is not None:
            self._task.cancel()

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`; None if a signal cancelled it before its end."""
        self._task = asyncio.create_task(work)
        try:
            result = await self._task
        except asyncio.CancelledError:
            if not self.by:  # not by us
                raise
        finally:
            self._task = None
        return None if self.by else result
