"""Errors of the event loop: lack of descriptors in one line, anything else as asyncio shows it."""

import asyncio
from typing import Any

import pytest

from harness.process.exhaustion import LoopErrors

FULL = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}


class Handle:
    """As the loop's own handle of its second try shows itself."""

    def __repr__(self) -> str:
        return "<TimerHandle BaseSelectorEventLoop._start_serving()>"


AGAIN = {"message": "in callback", "exception": ValueError("Invalid file descriptor: -1"), "handle": Handle()}
BUG = {"message": "never retrieved", "exception": RuntimeError("a bug")}


def test_a_lack_is_noted_once_with_its_consequence_and_a_bug_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    shown: list[dict[str, Any]] = []
    loop = asyncio.new_event_loop()
    try:
        monkeypatch.setattr(loop, "default_exception_handler", shown.append)
        loop.set_exception_handler(LoopErrors(notes.append))
        loop.call_exception_handler(AGAIN)
        assert shown == [AGAIN], "it is a consequence of nothing yet"
        for context in (FULL, FULL, AGAIN, BUG):
            loop.call_exception_handler(context)
    finally:
        loop.close()
    assert shown == [AGAIN, BUG]
    (note,) = notes
    assert note.startswith("socket.accept() out of system resource: there is no file descriptor left, the limit is ")
