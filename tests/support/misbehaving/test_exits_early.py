"""Leaves midway by os._exit(0), which looks like success: EXITED_EARLY."""

import os


def test_passes() -> None:
    pass


def test_leaves() -> None:
    os._exit(0)


def test_never_runs() -> None:
    pass
