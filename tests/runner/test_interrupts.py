"""Real runs interrupted at random moments, one of each kind per means of containment; `tests/benchmarks/interrupts.py`
does a thousand."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.benchmarks.interrupts import KINDS, kind_of, trial

pytestmark = pytest.mark.full

SEED = 20260301


@pytest.mark.timeout(240)
def test_whatever_ends_a_run_nobody_survives_it_and_its_outcomes_add_up(backend: str) -> None:
    first = {kind_of(number, SEED): number for number in reversed(range(60))}
    assert set(first) == set(KINDS)
    with ThreadPoolExecutor(2) as pool:
        trials = list(pool.map(lambda number: trial(number, SEED, backend), first.values()))
    assert [one for one in trials if one.wrong] == []
