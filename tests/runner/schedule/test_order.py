"""The order of a pool: the best of the sort keys, the same every time, and one that bears durations that are off."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, makespan_s
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.order import KEYS, MAX_SIMULATED_UNITS, FreeCount, best_order
from tests.support.packing_cases import EIGHT, QUICK, jobs_of, widths


def drawn_jobs(num_files: int, seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [Job(i, Need(rng.randint(1, 8)), rng.lognormvariate(4, 1)) for i in range(num_files)]


def ordered(jobs: list[Job]) -> tuple[Job, ...]:
    return best_order(jobs, lambda: FreeCount(8))


@pytest.mark.full
@QUICK
@given(jobs_of(widths(8), max_size=40))
def test_counting_free_cards_gives_the_schedule_of_the_table(jobs: list[Job]) -> None:
    assert makespan_s(jobs, FreeCount(8)) == makespan_s(jobs, LeaseTable(EIGHT, 1))


@pytest.mark.full
@QUICK
@given(jobs_of(st.just(Need()), max_size=40), st.integers(1, 5))
def test_counting_free_places_gives_the_schedule_of_the_table(jobs: list[Job], cpu_units: int) -> None:
    assert makespan_s(jobs, FreeCount(cpu_units)) == makespan_s(jobs, LeaseTable(EIGHT, cpu_units))


def test_the_same_arguments_give_the_same_order() -> None:
    jobs = drawn_jobs(40, seed=1)
    assert ordered(jobs) == ordered(jobs)
    assert ordered([]) == ()


def test_of_exact_durations_the_order_is_the_shortest_of_the_keys() -> None:
    chosen = set()
    for seed in range(10):
        jobs = [replace(job, spread=0.0) for job in drawn_jobs(30, seed)]
        lengths_s = [makespan_s(sorted(jobs, key=key), FreeCount(8)) for key in KEYS]
        assert makespan_s(ordered(jobs), FreeCount(8)) == min(lengths_s)
        chosen.add(lengths_s.index(min(lengths_s)))
    assert len(chosen) > 1, "one key would do"


@pytest.mark.parametrize(("num_files", "num_sets"), [(30, 9), (2000, 2), (30_000, 1)])
def test_units_that_are_many_are_simulated_less(num_files: int, num_sets: int) -> None:
    class Counted(FreeCount):
        num_made = 0

        def __init__(self) -> None:
            super().__init__(8)
            Counted.num_made += 1

    jobs = [Job(i, Need(1), 1.0) for i in range(num_files)]
    best_order(jobs, Counted)
    assert Counted.num_made == num_sets * len(KEYS)
    assert num_sets == 1 or num_files * Counted.num_made <= MAX_SIMULATED_UNITS
