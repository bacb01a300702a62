"""Run a call that may never return in a daemon thread: a driver that hangs must not hang a run."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T], *, limit_s: float) -> T:
    """Return or raise the result of `call`; TimeoutError after `limit_s` seconds, while the call continues.

    In a daemon thread of its own: a pool's threads are waited for when the interpreter exits.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        with suppress(InvalidStateError, RuntimeError):  # given up on, or the loop has closed meanwhile
            try:
                result = call()
            except BaseException as error:  # whatever it is, it is the asker's
                answer.set_exception(error)
            else:
                answer.set_result(result)

    threading.Thread(target=ask, name="a call that may hang", daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(answer), limit_s)
