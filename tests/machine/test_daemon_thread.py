"""A call that hangs costs its limit and nothing more, not even at the interpreter's exit."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.process.daemon_thread import in_daemon_thread

ROOT = Path(__file__).parents[2]


def test_an_answer_comes_back() -> None:
    assert asyncio.run(in_daemon_thread(lambda: threading.current_thread().daemon, limit_s=5)) is True


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_it_raises_comes_back(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def ask() -> BaseException:
        try:
            await in_daemon_thread(fail, limit_s=5)
        except (ValueError, SystemExit) as raised:
            return raised
        raise AssertionError("nothing was raised")

    assert asyncio.run(ask()) is error


class Hanging:
    """A call that ends when it is told to."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.release.wait()


def test_nobody_waits_longer_than_the_limit_and_a_late_answer_harms_nobody() -> None:
    call = Hanging()
    complaints: list[object] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with pytest.raises(TimeoutError):
            await in_daemon_thread(call, limit_s=0.05)
        call.release.set()  # the answer now comes for a question nobody asks any more
        call.thread.join(5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert complaints == []


def test_an_answer_after_the_loop_has_closed_harms_nobody() -> None:
    call = Hanging()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await in_daemon_thread(call, limit_s=0.01)

    asyncio.run(ask())
    call.release.set()
    call.thread.join(5)
    assert not call.thread.is_alive()


HANGS = """
import asyncio, threading
from harness.process.daemon_thread import in_daemon_thread
try:
    asyncio.run(in_daemon_thread(threading.Event().wait, limit_s=0.05))
except TimeoutError:
    print("given up")
"""


def test_the_interpreter_exits_although_the_call_never_ends() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("given up\n", "")
    assert time.monotonic() - began < 30
