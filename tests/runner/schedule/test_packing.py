"""Plans: whole, legal, the same every time, and as short as their bound lets them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.first_fit import Queue, simulate
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, plan
from tests.support.packing_cases import EIGHT, INVENTORIES, NEEDS, QUICK, inventory, jobs_of, widths


@pytest.mark.full
@QUICK
@given(jobs_of(NEEDS), INVENTORIES, st.integers(0, 3), st.booleans())
def test_a_plan_is_what_first_fit_makes_of_its_order(
    jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool
) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    made = plan(jobs, table)
    assert sorted(made.order, key=lambda job: job.index) == sorted(jobs, key=lambda job: job.index)
    schedule = simulate(made.order, table.fresh())
    assert [(p.index, p.gpu_ids, p.start_s, p.end_s, p.exclusive) for p in made.placements] == [
        (s.job.index, s.lease.gpu_ids, s.start_s, s.end_s, s.lease.exclusive) for s in schedule.starts
    ]
    assert made.makespan_s == schedule.makespan_s
    assert made.bound.value_s <= made.makespan_s * (1 + 1e-9)
    assert made.gpus == gpus.gpus
    reasons = {job.index: table.why_never(job.need) for job in jobs}
    assert dict(made.never) == {index: why for index, why in reasons.items() if why}
    assert [job.index for job, _ in Queue(made.order).drop(table.why_never)] == [index for index, _ in made.never]


@QUICK
@given(jobs_of(widths(8), max_size=40).filter(bool))
def test_the_makespan_is_within_the_proven_factor_of_the_bound(jobs: list[Job]) -> None:
    made = plan(jobs, LeaseTable(EIGHT, 1))
    assert made.makespan_s <= (2 - 1 / 8) * made.bound.value_s * (1 + 1e-9)


@pytest.mark.full
@QUICK
@given(jobs_of(NEEDS), INVENTORIES)
def test_the_order_of_the_jobs_and_the_state_of_the_table_change_nothing(jobs: list[Job], gpus: Inventory) -> None:
    table = LeaseTable(gpus, 2)
    made = plan(jobs, table)
    table.lease(Need(gpus=2))
    table.lease(Need())
    assert plan(jobs, table) == made


@pytest.mark.full
@QUICK
@given(jobs_of(NEEDS), INVENTORIES)
def test_exclusive_units_come_first_and_cost_their_own_length_alone(jobs: list[Job], gpus: Inventory) -> None:
    table = LeaseTable(gpus, 2)
    made = plan(jobs, table)
    exclusive = [p for p in made.placements if p.exclusive]
    exclusive_s = sum(p.end_s - p.start_s for p in exclusive)
    others = plan([job for job in jobs if not job.need.exclusive], table)
    assert made.placements[: len(exclusive)] == tuple(exclusive)
    assert made.makespan_s == pytest.approx(exclusive_s + others.makespan_s)
    assert made.bound.value_s == pytest.approx(exclusive_s + others.bound.value_s)


def test_units_that_fit_beside_no_other_come_before_those_that_do() -> None:
    jobs = [Job(0, Need(gpus=1), 9.0), Job(1, Need(gpus=8), 1.0), Job(2, Need(gpus=2), 3.0), Job(3, Need(gpus=8), 2.0)]
    made = plan(jobs, LeaseTable(EIGHT, 1))
    assert {job.index for job in made.order[:2]} == {1, 3}
    assert made.makespan_s == made.bound.value_s == 12.0


def drawn_jobs(seed: int, max_width: int = 8, num_files: int = 40) -> list[Job]:
    rng = random.Random(seed)
    return [Job(i, Need(gpus=rng.randint(1, max_width)), rng.lognormvariate(4, 1)) for i in range(num_files)]


@pytest.mark.full
def test_units_that_fit_beside_no_other_cost_their_own_length_alone() -> None:
    """The order of the others is the same with them and without."""
    for seed in range(5):
        others = drawn_jobs(seed, max_width=7)
        alone = [Job(40 + i, Need(gpus=8), 100.0 * i) for i in range(4)]
        without, made = (plan(jobs, LeaseTable(EIGHT, 1)) for jobs in (others, others + alone))
        assert made.makespan_s == pytest.approx(without.makespan_s + 600.0)
        assert made.bound.value_s == pytest.approx(without.bound.value_s + 600.0)


def test_pools_of_different_models_are_ordered_apart() -> None:
    gpus = inventory((4, "A100", 80.0), (4, "H200", 143.0))
    rng = random.Random(2)
    halves = [
        [Job(i * 2 + half, Need(gpus=rng.choice((1, 2, 4)), model=model), rng.lognormvariate(4, 1)) for i in range(20)]
        for half, model in enumerate(("A100", "H200"))
    ]
    apart = [plan(half, LeaseTable(gpus, 1)) for half in halves]
    made = plan(halves[0] + halves[1], LeaseTable(gpus, 1))
    assert made.makespan_s <= max(p.makespan_s for p in apart) * 1.001
    assert made.bound.value_s == max(p.bound.value_s for p in apart)


def test_the_file_to_split_is_named_by_its_index() -> None:
    jobs = [Job(9, Need(gpus=2), 500.0), *(Job(i, Need(gpus=1), 10.0) for i in range(8))]
    made = plan(jobs, LeaseTable(EIGHT, 1))
    assert made.bound.unit == 9


def test_a_plan_of_nothing() -> None:
    made = plan([], LeaseTable(EIGHT, 1))
    assert (made.order, made.placements, made.makespan_s, made.bound.value_s) == ((), (), 0.0, 0.0)


def mean_ratio(made: list[Plan]) -> float:
    return sum(p.makespan_s / p.bound.value_s for p in made) / len(made)


@pytest.mark.full
def test_mixed_inventories_are_packed_well_too() -> None:
    gpus = inventory((4, "A100", 80.0), (4, "H200", 143.0))
    made = []
    for seed in range(8):
        rng = random.Random(seed)
        needs = [Need(gpus=rng.choice((1, 2, 4)), model=rng.choice((None, None, "A100", "H200"))) for _ in range(60)]
        jobs = [Job(i, need, rng.lognormvariate(4, 1)) for i, need in enumerate(needs)]
        made.append(plan(jobs, LeaseTable(gpus, 1)))
    assert mean_ratio(made) < 1.03


def test_guesses_are_planned_for_as_guesses() -> None:
    """Where nothing is known, the order is one that bears surprises: not all narrow units last."""
    rng = random.Random(4)
    ratio = {0.0: 0.0, 1.0: 0.0}
    for _ in range(25):
        jobs = [Job(i, Need(gpus=rng.choice((1, 2, 4, 8))), 60.0) for i in range(40)]
        actual_s = [rng.lognormvariate(4, 1) for _ in jobs]
        for spread in ratio:
            made = plan([replace(job, spread=spread) for job in jobs], LeaseTable(EIGHT, 1))
            ratio[spread] += max(s.end_s for s in simulate(made.order, LeaseTable(EIGHT, 1), actual_s).starts)
    assert ratio[1.0] < ratio[0.0] * 0.98
