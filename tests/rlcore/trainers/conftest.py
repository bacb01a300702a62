"""Four Gloo ranks for all tests of a file: torch starts once on each of them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.fixtures.ranks import Ranks, start_ranks

NUM_RANKS = 4
TIMEOUT_S = 180.0
"""Seconds that a call may take on ranks that share two busy cores."""
OnRanks = Callable[..., list[Any]]


class _Restarted:
    """Ranks that start when they are first asked, and again after a call that failed ended them."""

    def __init__(self) -> None:
        self.ranks: Ranks | None = None

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function on every rank; return what each returns."""
        if self.ranks is None or not self.ranks.num_ranks:
            self.ranks = start_ranks(NUM_RANKS, timeout_s=TIMEOUT_S, env={"OMP_NUM_THREADS": "1"})
        return self.ranks.run(function, *args)


@pytest.fixture(scope="module")
def on_ranks() -> Iterator[OnRanks]:
    """Calls a function of a module on four ranks."""
    held = _Restarted()
    yield held.run
    if held.ranks is not None:
        held.ranks.close()
