"""Its second test outlasts its own limit, in C, where nothing inside the process can end it: TIMED_OUT, and the third
is told never to have started."""

import ctypes
import signal

import pytest


def test_passes() -> None:
    pass


@pytest.mark.timeout(1)
def test_hangs() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).pause()


def test_never_runs() -> None:
    pass
