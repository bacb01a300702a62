"""Wants more GPUs than any machine here has: NOT_RUN, with what it asked for and what there is."""

import pytest


@pytest.mark.gpus(16)
def test_never_runs() -> None:
    pass
