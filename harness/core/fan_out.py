"""A bounded concurrent map. No attempt that holds GPUs goes through here: those need leases.

Not `asyncio.TaskGroup`: it wraps failures in groups, prefers them to a cancellation, and up to Python 3.12 leaves its
parent's count of cancellations raised, which breaks `asyncio.timeout` around it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def fan_out(function: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], *, limit: int) -> list[R]:
    """Return `function` of each item, at most `limit` (at least 1) at a time, in the order of the items.

    The first failure cancels what still runs, waits for it to end, and is raised; so does a cancellation. A second
    cancellation does not cut that short: no child is left behind.
    """
    if limit < 1:
        raise ValueError(f"limit {limit}: at least 1")
    tasks: list[asyncio.Task[R]] = []
    running: set[asyncio.Task[R]] = set()
    try:
        for item in items:
            if len(running) == limit:
                running = await _next_ended(running)
            tasks.append(asyncio.create_task(function(item)))
            running.add(tasks[-1])
        while running:
            running = await _next_ended(running)
    except BaseException:
        await _cancel([task for task in tasks if not task.done()])
        for task in tasks:
            if not task.cancelled():
                task.exception()  # seen, so that asyncio does not log a second failure as forgotten
        raise
    return [task.result() for task in tasks]


async def _next_ended(running: set[asyncio.Task[R]]) -> set[asyncio.Task[R]]:
    """Wait until one or more have ended; raise their failure, or return those that still run."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    return running


async def _cancel(tasks: list[asyncio.Task[R]]) -> None:
    """Cancel the tasks and wait until all have ended; a cancellation meanwhile is raised afterwards."""
    for task in tasks:
        task.cancel()
    again: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            again = error
    if again is not None:
        raise again
