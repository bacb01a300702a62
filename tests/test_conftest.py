"""The repository's own conftest.py: no property fails here for being slow, and runs below load no plugin unasked."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import DeadlineExceeded, FailedHealthCheck

Spend = Callable[[int], int]
"""Gives what it is given, later."""


@pytest.fixture
def spend_an_hour(monkeypatch: pytest.MonkeyPatch) -> Spend:
    """Of the clock that hypothesis reads, and of nothing else."""
    now_s = 0.0

    def spend(number: int) -> int:
        nonlocal now_s
        now_s += 3600.0
        return number

    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    return spend


def draws_slowly(by: settings, spend: Spend) -> None:
    @settings(by, database=None)
    @given(st.integers().map(spend))
    def holds(number: int) -> None:
        assert isinstance(number, int)

    holds()


def runs_slowly(by: settings, spend: Spend) -> None:
    @settings(by, database=None)
    @given(st.integers())
    def holds(number: int) -> None:
        assert spend(number) == number

    holds()


@pytest.mark.parametrize("slow", [draws_slowly, runs_slowly])
def test_slowness_fails_no_property(slow: Callable[[settings, Spend], None], spend_an_hour: Spend) -> None:
    slow(settings(max_examples=20), spend_an_hour)


@pytest.mark.parametrize(("slow", "error"), [(draws_slowly, FailedHealthCheck), (runs_slowly, DeadlineExceeded)])
def test_slowness_would_fail_by_hypothesis_own_settings(
    slow: Callable[[settings, Spend], None], error: type[Exception], spend_an_hour: Spend
) -> None:
    with pytest.raises(error):
        slow(settings.get_profile("default"), spend_an_hour)


@given(st.integers())
def test_examples_may_share_a_fixture(seed: str, number: int) -> None:
    assert f"{seed}{number}".startswith(seed)


def test_a_run_of_pytest_below_loads_what_it_names(tmp_path: Path) -> None:
    for words, is_named in (((), False), (("-p", "timeout"), True)):
        command = [sys.executable, "-m", "pytest", "--version", "--version", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "hypothesis" not in done.stdout + done.stderr
        assert ("pytest-timeout" in done.stdout + done.stderr) == is_named
