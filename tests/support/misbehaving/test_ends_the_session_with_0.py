"""Ends pytest's session midway with status 0, so that pytest itself announces success: EXITED_EARLY."""

import pytest


def test_passes() -> None:
    pass


def test_ends_the_session() -> None:
    pytest.exit("done", returncode=0)


def test_never_runs() -> None:
    pass
