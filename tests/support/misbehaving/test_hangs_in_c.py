"""Hangs in C with every signal blocked, so that no Python handler ever runs: TIMED_OUT."""

import ctypes
import signal


def test_hangs() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).pause()
