"""The other libraries, each started by the first test that asks for it."""

from collections.abc import Iterator

import pytest

from tests.rlcore.peers.peer import TRL, VERL, Peer, started


@pytest.fixture(scope="session")
def verl() -> Iterator[Peer]:
    with started(VERL) as peer:
        yield peer


@pytest.fixture(scope="session")
def trl() -> Iterator[Peer]:
    with started(TRL) as peer:
        yield peer
