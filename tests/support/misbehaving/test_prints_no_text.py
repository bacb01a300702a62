"""Prints bytes that are not UTF-8, NULs, and sequences that clear the screen and retitle the window, and fails: FAILED,
the bytes kept as they are, and shown so that they do nothing to the terminal."""

import os

import pytest

BYTES = bytes(range(256)) + b"\xff\xfe\0\x1b[2J\x1b[1;1H\x1b]0;title\x07\x1b[31mred\x1b[0m\n"


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        os.write(1, BYTES)
    pytest.fail(BYTES.decode("latin-1"))
