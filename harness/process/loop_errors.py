"""Errors of the event loop's own calls, which reach no caller."""

import asyncio
from collections.abc import Callable
from typing import Any

from harness.process.exhaustion import exhaustion_of, reason_of


class LoopErrors:
    """An exception handler for a loop: what says that this machine has run out of something is noted once, in a line.

    Anything else goes to the loop's default handler. With descriptors lacking, asyncio accepts no connection and tries
    again after a second, also where the server has been closed meanwhile; that failure is a part of the first.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take one error, as asyncio's documentation of `set_exception_handler` describes it."""
        error = context.get("exception")
        if error is not None and exhaustion_of(error) is not None:
            line = f"{context['message']}: {reason_of(error)}"
            if line not in self._noted:
                self._noted.add(line)
                self._note(line)
        elif not (self._noted and isinstance(error, ValueError) and "_start_serving" in repr(context.get("handle"))):
            loop.default_exception_handler(context)
