"""Run a call that may never return in a daemon thread: a driver that hangs must not hang a run."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T], *, limit_s: float) -> T:
    """Return or raise the result of `call`; TimeoutError after `limit_s` seconds, while the call continues.

    In a daemon thread of its own: a pool's threads are waited for when the interpreter exits.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # T itself may be optional

    def ask() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # whatever it is, it is the asker's
            error = raised
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=ask, name="a call that may hang", daemon=True).start()
    return await asyncio.wait_for(answer, limit_s)
