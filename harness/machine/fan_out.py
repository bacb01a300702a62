"""A bounded concurrent map. It alone uses asyncio_pool, whose pool holds the cap, and adds what version 0.6.0 lacks:

- waiting for a free slot in the pool swallows a cancellation: it is never made to wait, an item is handed over only
  once one has ended;
- leaving the pool's context joins its children instead of cancelling them: they are cancelled by hand, and awaited;
- a failure stays in its future: it is taken out, and the other children are cancelled;
- a task cancelled before its first step keeps its slot for ever: nothing is cancelled in the turn that spawned it.

No attempt that holds GPUs goes through here: those need leases.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from asyncio_pool import AioPool

T = TypeVar("T")
R = TypeVar("R")


async def fan_out(function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int) -> list[R]:
    """Call `function` for each item, at most `limit` (at least 1) at a time; results are in the order of the items.

    The first failure cancels what still runs, waits for it to end, and is raised; so does a cancellation. A second
    cancellation does not cut that short: no child keeps running.
    """
    if limit < 1:
        raise ValueError(f"limit {limit}: at least 1")
    pool = AioPool(size=limit)
    futures: list[asyncio.Future[R]] = []
    running: set[asyncio.Future[R]] = set()
    try:
        for item in items:
            if len(running) == limit:
                running = await _next_ended(running)
            future = await pool.spawn(function(item))
            futures.append(future)
            running.add(future)
        while running:
            running = await _next_ended(running)
    except BaseException:
        await _cancel_all(pool)
        for future in futures:
            if future.done() and not future.cancelled():
                future.exception()  # seen, so that asyncio does not log a second failure as forgotten
        raise
    return [future.result() for future in futures]


async def _next_ended(running: set[asyncio.Future[R]]) -> set[asyncio.Future[R]]:
    """Wait until one or more have ended; raise their failure, or return those that still run."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for future in ended:
        future.result()
    return running


async def _cancel_all(pool: AioPool) -> None:
    cancelling = asyncio.create_task(pool.cancel())
    again: asyncio.CancelledError | None = None
    while not cancelling.done():
        try:
            await asyncio.shield(cancelling)
        except asyncio.CancelledError as error:
            again = error
    if again is not None:
        raise again
