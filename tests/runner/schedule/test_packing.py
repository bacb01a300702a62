"""Packing: what is planned is what is run, near its bound; no schedule beats the bound."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.leases import Lease, LeaseTable
from harness.runner.schedule.packing import Bound, Job, Queue, Term, lower_bound, makespan_s, plan, simulate
from tests.support.packing_cases import (
    EIGHT,
    INVENTORIES,
    NEEDS,
    QUICK,
    SHARED_NEEDS,
    THOROUGH,
    inventory,
    jobs_of,
    optimum_s,
    widths,
)

BUDGETS = st.builds(
    Need, gpus=st.just(1), memory_gb=st.sampled_from([1.5, 20, 40, 41, 71.5, 80, 143]), shared=st.just(True)
)
TINY = st.sampled_from(
    [
        inventory((4, "H200", 143.0)),
        inventory((3, "H200", 143.0)),
        inventory((2, "A100", 80.0), (2, "H200", 143.0)),
        inventory((1, "A100", 40.0), (1, "A100", 80.0), (2, "H200", 143.0)),
    ]
)


# ---- first fit


def first_fit_by_hand(jobs: Sequence[Job], table: LeaseTable) -> list[tuple[int, float, tuple[str, ...]]]:
    """The rule as its sentence says it: at every moment try every queued unit in order."""
    queued, running, now_s = list(jobs), list[tuple[float, Lease]](), 0.0
    starts = []
    while True:
        for job in list(queued):
            if lease := table.lease(job.need):
                queued.remove(job)
                running.append((now_s + job.expected_s, lease))
                starts.append((job.index, now_s, lease.gpu_ids))
        if not running:
            return starts
        now_s = min(end_s for end_s, _ in running)
        for end_s, lease in list(running):
            if end_s == now_s:
                table.give_back(lease)
                running.remove((end_s, lease))


@pytest.mark.full
@THOROUGH
@given(
    jobs_of(st.one_of(NEEDS, BUDGETS), max_size=40, seconds=st.integers(0, 9).map(float)),
    INVENTORIES,
    st.integers(0, 3),
    st.booleans(),
)
def test_the_queue_is_first_fit(jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    placements = list(simulate(jobs, table.fresh()))
    assert [(each.index, each.start_s, each.gpu_ids) for each in placements] == first_fit_by_hand(jobs, table)
    never = {job.index for job in jobs if table.why_never(job.need)}
    assert sorted([*(each.index for each in placements), *never]) == sorted(job.index for job in jobs)
    of_index = {job.index: job for job in jobs}
    for each in placements:
        job = of_index[each.index]
        assert (len(each.gpu_ids), each.end_s) == (job.need.gpus, each.start_s + job.expected_s)


@pytest.mark.full
@THOROUGH
@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(NEEDS, BUDGETS)), max_size=60))
def test_units_put_first_start_first_whatever_their_memory(steps: list[tuple[int, Need]]) -> None:
    """A walk against a plain list: units are put first, start, or are dropped."""
    queue, queued, table = Queue([]), list[Job](), LeaseTable(EIGHT, 2)
    out: list[Lease] = []
    for index, (deed, need) in enumerate(steps):
        if deed == 0:
            table.quarantine(f"ID-{index % 8}")
            dropped = queue.drop(table.why_never)
            assert dropped == [(job, why) for job in queued if (why := table.why_never(job.need))]
            queued = [job for job in queued if not table.why_never(job.need)]
        elif deed == 1:
            chosen = queue.next(table)
            if chosen is not None:
                job, lease = chosen
                first = next(each for each in queued if each is job or table.lease(each.need))
                assert first is job, "one before it would have fitted"
                queued.remove(job)
                out.append(lease)
        elif deed == 2 and out:
            table.give_back(out.pop(index % len(out)))
        else:
            job = Job(index, need, 1.0)
            queue.put_first(job)
            queued.insert(0, job)
        assert len(queue) == len(queued)
    assert queue.drain() == queued


@pytest.mark.full
@THOROUGH
@given(jobs_of(widths(8), max_size=40).filter(bool))
def test_any_order_is_within_the_proven_factor(jobs: list[Job]) -> None:
    """(2 - 1/m) times the greater of area and longest unit, whatever the order: Garey and Graham's bound."""
    bound_s = max(sum(job.need.gpus * job.expected_s for job in jobs) / 8, *(job.expected_s for job in jobs))
    assert makespan_s(simulate(jobs, LeaseTable(EIGHT, 1))) <= (2 - 1 / 8) * bound_s * (1 + 1e-9)


@QUICK
@given(jobs_of(SHARED_NEEDS), st.integers(1, 3))
def test_units_without_gpus_never_keep_one_with_gpus_waiting(jobs: list[Job], cpu_units: int) -> None:
    table = LeaseTable(EIGHT, cpu_units)
    on_gpus = [job for job in jobs if job.need.gpus]
    alone = [(each.index, each.start_s) for each in simulate(on_gpus, table.fresh())]
    assert [(each.index, each.start_s) for each in simulate(jobs, table.fresh()) if each.gpu_ids] == alone


def test_an_exclusive_unit_and_a_wide_one_get_their_turn_at_the_latest_at_the_end() -> None:
    narrow = [Job(i, Need(gpus=1), 5.0 + i) for i in range(20)]
    wide, alone = Job(20, Need(gpus=8), 1.0), Job(21, Need(gpus=1, exclusive=True), 1.0)
    late = simulate([*narrow[:8], alone, wide, *narrow[8:]], LeaseTable(EIGHT, 1))
    assert [each.index for each in late][-2:] == [21, 20]
    first = simulate([alone, wide, *narrow], LeaseTable(EIGHT, 1))
    assert [each.index for each in first][:2] == [21, 20]


def test_durations_can_differ_from_the_expected_ones() -> None:
    jobs = [Job(1, Need(gpus=1), 5.0), Job(0, Need(gpus=1), 7.0)]
    assert makespan_s(simulate(jobs, LeaseTable(inventory((1, "A", 8.0)), 1), seconds=[100.0, 1.0])) == 101.0


def test_what_can_never_run_is_dropped_in_order() -> None:
    jobs = [Job(i, Need(gpus=gpus), 1.0) for i, gpus in enumerate([16, 1, 9, 16, 2])]
    queue, table = Queue(jobs), LeaseTable(EIGHT, 1)
    dropped = queue.drop(table.why_never)
    assert [job.index for job, _ in dropped] == [0, 2, 3]
    assert dropped[1][1] == "needs 9 GPUs; this run has 8 x H200 143 GB"
    assert len(queue) == 2
    assert queue.drop(table.why_never) == []
    assert queue.next(table) is not None
    assert len(queue) == 1
    assert [job.index for job in queue.drain()] == [4]
    assert len(queue) == 0
    assert queue.next(table) is None


def test_a_start_costs_as_many_tries_as_there_are_distinct_needs() -> None:
    class CountingTable(LeaseTable):
        num_asked = 0

        def lease(self, need: Need) -> Lease | None:
            self.num_asked += 1
            return super().lease(need)

    jobs = [Job(i, Need(gpus=(0, 1, 2, 4, 8)[i % 5]), 1.0 + i * 7 % 101) for i in range(2000)]
    table = CountingTable(EIGHT, 4)
    assert len(list(simulate(jobs, table))) == 2000
    assert table.num_asked <= 2 * 2000 * 5


# ---- plans


@pytest.mark.full
@QUICK
@given(jobs_of(st.one_of(NEEDS, BUDGETS)), INVENTORIES, st.integers(0, 3), st.booleans())
def test_a_plan_is_what_first_fit_makes_of_its_order(
    jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool
) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    made = plan(jobs, table)
    table.lease(Need(gpus=2))
    assert plan(jobs, table) == made, "the state of the table changes nothing"
    assert sorted(made.order, key=lambda job: job.index) == sorted(jobs, key=lambda job: job.index)
    assert made.placements == tuple(simulate(made.order, table.fresh()))
    assert made.makespan_s == makespan_s(made.placements)
    assert made.bound.value_s <= made.makespan_s * (1 + 1e-9)
    assert made.gpus == gpus.gpus
    assert dict(made.never) == {job.index: why for job in jobs if (why := table.why_never(job.need))}
    dropped = [job.index for job, _ in Queue(made.order).drop(table.why_never)]
    assert dropped == [index for index, _ in made.never]


@pytest.mark.full
@QUICK
@given(jobs_of(NEEDS), INVENTORIES)
def test_exclusive_units_come_first_and_cost_their_own_length_alone(jobs: list[Job], gpus: Inventory) -> None:
    table = LeaseTable(gpus, 2)
    made = plan(jobs, table)
    exclusive = [each for each in made.placements if each.exclusive]
    exclusive_s = sum(each.end_s - each.start_s for each in exclusive)
    others = plan([job for job in jobs if not job.need.exclusive], table)
    assert made.placements[: len(exclusive)] == tuple(exclusive)
    assert made.makespan_s == pytest.approx(exclusive_s + others.makespan_s)
    assert made.bound.value_s == pytest.approx(exclusive_s + others.bound.value_s)


def test_the_largest_areas_come_first_and_equal_ones_in_their_order() -> None:
    jobs = [Job(i, Need(gpus=gpus), seconds) for i, (gpus, seconds) in enumerate([(1, 4), (4, 1), (2, 9), (1, 4)])]
    made = plan(jobs, LeaseTable(EIGHT, 1))
    assert [job.index for job in made.order] == [2, 0, 1, 3]
    made = plan(jobs, LeaseTable(EIGHT, 1), first=frozenset({3, 1}))
    assert [job.index for job in made.order] == [1, 3, 2, 0]


def test_a_plan_of_nothing() -> None:
    made = plan([], LeaseTable(EIGHT, 1))
    assert (made.order, made.placements, made.makespan_s, made.bound) == ((), (), 0.0, Bound(0.0, Term.NOTHING))


@pytest.mark.full
def test_mixed_inventories_are_packed_well_too() -> None:
    table = LeaseTable(inventory((4, "A100", 80.0), (4, "H200", 143.0)), 1)
    ratios = []
    for seed in range(8):
        rng = random.Random(seed)
        needs = [Need(gpus=rng.choice((1, 2, 4)), model=rng.choice((None, None, "A100", "H200"))) for _ in range(60)]
        made = plan([Job(i, need, rng.lognormvariate(4, 1)) for i, need in enumerate(needs)], table)
        ratios.append(made.makespan_s / made.bound.value_s)
    assert sum(ratios) / len(ratios) < 1.03


# ---- the lower bound


@pytest.mark.full
@THOROUGH
@given(jobs_of(NEEDS, max_size=4), TINY, st.integers(1, 2), st.booleans())
def test_no_schedule_beats_the_bound(jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    jobs = [job for job in jobs if not table.why_never(job.need)]
    optimum = optimum_s(jobs, table)
    assert lower_bound(jobs, table).value_s <= optimum * (1 + 1e-9)
    assert makespan_s(simulate(jobs, table.fresh())) >= optimum * (1 - 1e-9), "the optimum was not one"


@pytest.mark.parametrize(
    ("units", "term", "value_s"),
    [
        ([], Term.NOTHING, 0),
        ([(10, 1)], Term.LONGEST, 10),
        ([(10, 8)], Term.LONGEST, 10),
        ([(10, 5), (7, 6), (3, 4)], Term.BESIDE, 20),
        ([(1, 1), (10, 2), (1, 1)], Term.LONGEST, 10),
        ([(4, 1)] * 8 + [(1, 1)] * 16, Term.AREA, 6),
        ([(6, 1), (3, 5), (4, 6), (5, 5)], Term.ONE_AT_A_TIME, 12),
        ([(9, 3), (3, 6), (4, 7), (1, 1), (1, 1), (1, 1)], Term.BESIDE, 16),
        ([(100, 8), (10, 1), (50, 8), (1, 2)], Term.BESIDE, 160),
    ],
)
def test_the_reason_of_the_bound_is_named(units: list[tuple[float, int]], term: Term, value_s: float) -> None:
    jobs = [Job(index, Need(gpus=width), seconds) for index, (seconds, width) in enumerate(units)]
    bound = lower_bound(jobs, LeaseTable(EIGHT, 1))
    assert bound.term is term
    assert bound.value_s == pytest.approx(value_s)


def test_exclusive_units_add_to_everything() -> None:
    jobs = [
        Job(0, Need(exclusive=True), 7.0),
        Job(1, Need(gpus=2, exclusive=True), 5.0),
        Job(2, Need(gpus=1), 20.0),
        Job(3, Need(), 30.0),
    ]
    bound = lower_bound(jobs, LeaseTable(EIGHT, 2))
    assert (bound.value_s, bound.exclusive_s, bound.is_cpu) == (42.0, 12.0, True)
    assert lower_bound(jobs[:2], LeaseTable(EIGHT, 2)) == Bound(12.0, Term.ONE_AT_A_TIME, exclusive_s=12.0)


def test_units_confined_to_some_gpus_are_bounded_by_those() -> None:
    table = LeaseTable(inventory((4, "A100", 80.0), (4, "H200", 143.0)), 1)
    confined = [Job(i, Need(gpus=1, model="H200"), 10.0) for i in range(40)]
    free = [Job(40 + i, Need(gpus=1), 10.0) for i in range(20)]
    for num, value_s, num_places in ((40, 100.0, 4), (10, 37.5, 8)):
        bound = lower_bound([*free, *confined[:num]], table)
        assert (bound.value_s, bound.num_places) == (value_s, num_places)
