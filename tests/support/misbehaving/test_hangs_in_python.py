"""Hangs in Python, after a test that passed: TIMED_OUT, and the first test's result is kept."""

import time


def test_passes() -> None:
    pass


def test_hangs() -> None:
    while True:
        time.sleep(0.01)


def test_never_runs() -> None:
    pass
