"""Signals before, while and after something is awaited, and those that were ignored all along."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process.interruption import CANCEL_SIGNALS, Interruption

ROOT = Path(__file__).parents[2]


def deliver(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", CANCEL_SIGNALS)
def test_what_is_awaited_is_cancelled(signum: signal.Signals) -> None:
    async def scenario() -> str:
        with Interruption() as interruption:
            asyncio.get_running_loop().call_soon(deliver, signum)
            assert await interruption.unless_interrupted(asyncio.sleep(60, "slept")) is None
            return interruption.by

    assert asyncio.run(scenario()) == signum.name


def test_a_signal_that_came_before_or_with_the_result_counts() -> None:
    async def scenario() -> list[object]:
        with Interruption() as interruption:
            deliver(signal.SIGTERM)
            early = await interruption.unless_interrupted(asyncio.sleep(0, "slept"))

            async def and_then_a_signal() -> str:
                interruption.on_signal(signal.SIGINT)
                return "done all the same"

            late = await interruption.unless_interrupted(and_then_a_signal())
            return [early, late, interruption.by]

    assert asyncio.run(scenario()) == [None, None, "SIGTERM"]


def handlers() -> list[object]:
    return [signal.getsignal(signum) for signum in (*CANCEL_SIGNALS, signal.SIGUSR1)]


def test_handlers_are_given_back() -> None:
    async def scenario() -> list[object]:
        with Interruption():
            assert handlers() != before
        return handlers()

    before = handlers()
    assert asyncio.run(scenario()) == before


IGNORES = """
import asyncio, os, signal, sys
from harness.process.interruption import Interruption
async def main():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        print(await interruption.unless_interrupted(asyncio.sleep(0.05, "slept on")), repr(interruption.by))
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
asyncio.run(main())
"""


@pytest.mark.parametrize(("disposition", "said"), [("SIG_IGN", "slept on ''\n"), ("SIG_DFL", "None 'SIGHUP'\n")])
def test_a_signal_that_was_ignored_stays_ignored(disposition: str, said: str) -> None:
    command = [sys.executable, "-c", IGNORES, disposition]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == said
