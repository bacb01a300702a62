"""Needs no GPU."""

import time

import pytest


@pytest.mark.parametrize("text", ["two runs", "one bit"])
def test_round_trip(text: str) -> None:
    time.sleep(0.3)
    assert text.encode().decode() == text
