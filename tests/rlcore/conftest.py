"""MKL computes in the mode of level invariant from the collection on: it keeps the mode of its first work."""

import os
from collections.abc import Iterator

import pytest

from rlcore.numerics.level import Strategy, following
from rlcore.numerics.probe import STRATEGIES
from rlcore.numerics.product import hold_mkl_mode

hold_mkl_mode(os.environ)


@pytest.fixture(params=STRATEGIES, ids=lambda strategy: strategy.name)
def strategy(request: pytest.FixtureRequest) -> Iterator[Strategy]:
    """Each kernel strategy, which is followed in the test."""
    with following(request.param):
        yield request.param
