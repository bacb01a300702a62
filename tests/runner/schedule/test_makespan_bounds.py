"""Lower bounds: never above the optimum, and as high as each of their terms."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, makespan_s
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.makespan_bounds import (
    Bound,
    Term,
    lower_bound,
    places_bound,
    run_alone,
)
from tests.support.packing_cases import EIGHT, NEEDS, THOROUGH, inventory, jobs_of, optimum_s, widths

TINY = st.sampled_from(
    [
        inventory((4, "H200", 143.0)),
        inventory((3, "H200", 143.0)),
        inventory((2, "A100", 80.0), (2, "H200", 143.0)),
        inventory((1, "A100", 40.0), (1, "A100", 80.0), (2, "H200", 143.0)),
    ]
)
PIECES = st.lists(st.tuples(st.floats(0.01, 100.0), st.integers(1, 8)), min_size=1, max_size=24)


def bound_of(*units: tuple[float, int], num_places: int = 8) -> Bound:
    """The bound of units given as (seconds, width)."""
    return places_bound([p for p, _ in units], [q for _, q in units], num_places)


@pytest.mark.full
@THOROUGH
@given(jobs_of(NEEDS, max_size=4), TINY, st.integers(1, 2), st.booleans())
def test_no_schedule_beats_the_bound(jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    jobs = [job for job in jobs if not table.why_never(job.need)]
    optimum = optimum_s(jobs, table)
    bound = lower_bound(jobs, table)
    assert bound.value_s <= optimum * (1 + 1e-9)
    assert makespan_s(jobs, table.fresh()) >= optimum * (1 - 1e-9), "the optimum was not one"


@pytest.mark.full
@THOROUGH
@given(jobs_of(widths(5), max_size=5))
def test_no_schedule_of_equal_cards_beats_the_bound(jobs: list[Job]) -> None:
    table = LeaseTable(inventory((5, "H200", 143.0)), 1)
    assert lower_bound(jobs, table).value_s <= optimum_s(jobs, table) * (1 + 1e-9)


@pytest.mark.full
@THOROUGH
@given(PIECES)
def test_the_bound_is_as_high_as_each_of_its_terms(units: list[tuple[float, int]]) -> None:
    """The terms as they are written down, over all units."""
    value_s = bound_of(*units).value_s * (1 + 1e-9)
    assert value_s >= max(p for p, _ in units)
    assert value_s >= sum(p * q for p, q in units) / 8
    assert value_s >= sum(p for p, q in units if q > 4)
    for j, (p, q) in enumerate(units):
        others = units[:j] + units[j + 1 :]
        assert value_s >= p + sum(p_i for p_i, q_i in others if q_i > 4 and q_i > 8 - q)


@pytest.mark.parametrize(
    ("units", "term", "value_s", "unit"),
    [
        ([], Term.NOTHING, 0, None),
        ([(10, 1)], Term.LONGEST, 10, 0),
        ([(10, 8)], Term.LONGEST, 10, None),  # splitting it would run one half after the other
        ([(10, 5), (2, 3), (1, 3)], Term.LONGEST, 10, None),  # the same
        ([(10, 5), (7, 6), (3, 4)], Term.ONE_AT_A_TIME, 20, None),
        ([(1, 1), (10, 2), (1, 1)], Term.LONGEST, 10, 1),
        ([(4, 1)] * 8 + [(1, 1)] * 16, Term.AREA, 6, None),
        ([(6, 1), (3, 5), (4, 6), (5, 5)], Term.ONE_AT_A_TIME, 12, None),
        ([(9, 3), (3, 6), (4, 7), (1, 1), (1, 1), (1, 1)], Term.BESIDE, 16, 0),
    ],
)
def test_what_sets_the_bound_is_named(
    units: list[tuple[float, int]], term: Term, value_s: float, unit: int | None
) -> None:
    bound = bound_of(*units)
    assert (bound.term, bound.unit) == (term, unit)
    assert bound.value_s == pytest.approx(value_s)


def test_units_that_run_alone_add_to_the_bound_of_the_others() -> None:
    assert run_alone([8, 2, 7, 6], 8) == [0, 2]
    assert run_alone([5, 5], 8) == [0, 1]
    assert run_alone([5, 3], 8) == []
    assert run_alone([1], 8) == [0]
    bound = bound_of((100, 8), (10, 1), (50, 8), (1, 2))
    assert (bound.value_s, bound.term, bound.unit) == (160, Term.BESIDE, 1)


def test_exclusive_units_add_to_everything() -> None:
    jobs = [
        Job(0, Need(exclusive=True), 7.0),
        Job(1, Need(gpus=2, exclusive=True), 5.0),
        Job(2, Need(gpus=1), 20.0),
        Job(3, Need(), 30.0),
    ]
    bound = lower_bound(jobs, LeaseTable(EIGHT, 2))
    assert (bound.value_s, bound.exclusive_s, bound.unit, bound.is_cpu) == (42.0, 12.0, 3, True)
    alone = lower_bound(jobs[:2], LeaseTable(EIGHT, 2))
    assert (alone.value_s, alone.exclusive_s, alone.term, alone.unit) == (12.0, 12.0, Term.ONE_AT_A_TIME, None)


def test_units_confined_to_some_cards_are_bounded_by_those() -> None:
    gpus = inventory((4, "A100", 80.0), (4, "H200", 143.0))
    confined = [Job(i, Need(gpus=1, model="H200"), 10.0) for i in range(40)]
    free = [Job(40 + i, Need(gpus=1), 10.0) for i in range(20)]
    assert lower_bound([*free, *confined], LeaseTable(gpus, 1)).value_s == 100.0
    assert lower_bound([*free, *confined], LeaseTable(gpus, 1)).num_places == 4
    assert lower_bound([*free, *confined[:10]], LeaseTable(gpus, 1)).value_s == 37.5
    assert lower_bound([*free, *confined[:10]], LeaseTable(gpus, 1)).num_places == 8


def test_the_unit_is_named_by_its_own_index() -> None:
    jobs = [Job(17, Need(gpus=1), 1.0), Job(4, Need(gpus=1), 50.0)]
    assert lower_bound(jobs, LeaseTable(EIGHT, 1)).unit == 4


def test_every_width_up_to_a_big_machine_has_a_bound() -> None:
    for num_places, width in product((16, 64), (1, 7, 16)):
        bound = bound_of(*[(10.0, width)] * 30, num_places=num_places)
        assert bound.value_s >= 30 * 10 * width / num_places * (1 - 1e-9)
