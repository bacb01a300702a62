"""A fixture of kernel strategies."""

from collections.abc import Iterator

import pytest

from rlcore.numerics.level import Strategy, following
from rlcore.numerics.probe import STRATEGIES


@pytest.fixture(params=STRATEGIES, ids=lambda strategy: strategy.name)
def strategy(request: pytest.FixtureRequest) -> Iterator[Strategy]:
    """Each kernel strategy, which is followed in the test."""
    with following(request.param):
        yield request.param
