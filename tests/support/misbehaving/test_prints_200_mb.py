"""Prints 200 MB past pytest's capture and fails: FAILED, all of it in output.log, its first and last part shown."""

import os

import pytest

LINE = b"x" * 99 + b"\n"
NUM_LINES = 2_000_000


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        for _ in range(NUM_LINES // 1000):
            os.write(1, LINE * 1000)
    pytest.fail("so that it is shown")
