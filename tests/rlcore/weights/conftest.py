"""Fixtures of weight syncs: another process with samplers, and level invariant."""

from collections.abc import Iterator

import pytest

from rlcore.numerics.level import Strategy, following
from tests.support.remote_sampler import RemoteHost


@pytest.fixture(scope="module")
def other_process() -> Iterator[RemoteHost]:
    made = RemoteHost()
    yield made
    made.close()


@pytest.fixture
def at_level_invariant() -> Iterator[None]:
    with following(Strategy()):
        yield
