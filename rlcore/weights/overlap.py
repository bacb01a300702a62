"""Two computations at once: a question to another process, and work of the trainer's own meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

There = TypeVar("There")
Here = TypeVar("Here")


def at_once(there: Callable[[], There], here: Callable[[], Here], *, is_elsewhere: bool) -> tuple[There, Here]:
    """Return what both return. A question to this process is answered first, in this thread.

    The thread of the question only waits, and has this thread's context: the level of determinism. Raises what either
    raises, once both have ended.
    """
    if not is_elsewhere:
        return there(), here()
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(copy_context().run, there)
        own = here()
    return answer.result(), own
