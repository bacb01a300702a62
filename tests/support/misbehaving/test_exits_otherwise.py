"""Passes, and exits with another status than pytest announced: CRASHED."""

import atexit
import os


def test_passes() -> None:
    atexit.register(os._exit, 7)
