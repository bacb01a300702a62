"""Puts a FIFO in the place of the report that tells the runner about it, and hangs: TIMED_OUT."""

import os
import time

import pytest


def test_passes() -> None:
    pass


def test_hangs(request: pytest.FixtureRequest) -> None:
    report = request.config.getoption("--rlharness-report", default=None)
    if report is None:
        pytest.skip("not run by rlharness: there is no report")
    os.unlink(report)
    os.mkfifo(report)
    time.sleep(1000)


def test_never_starts() -> None:
    pass
