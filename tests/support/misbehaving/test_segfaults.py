"""Dies of SIGSEGV midway: CRASHED, naming the signal and the test."""

import ctypes


def test_passes() -> None:
    pass


def test_segfaults() -> None:
    ctypes.string_at(0)


def test_never_runs() -> None:
    pass
