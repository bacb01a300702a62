"""The rule of packing, in simulated time and against a clock: what is planned is what is run, at a counted cost."""

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, Queue, Schedule, makespan_s, simulate
from harness.runner.schedule.leases import Lease, LeaseTable
from tests.support.fake_clock import FakeClock
from tests.support.packing_cases import (
    EIGHT,
    INVENTORIES,
    NEEDS,
    QUICK,
    SHARED_NEEDS,
    THOROUGH,
    inventory,
    jobs_of,
    widths,
)

WIDTHS = (0, 1, 2, 4, 8)
MAX_CALLS_PER_UNIT = 80
"""62 in Python 3.11: what five needs ask of eight GPUs."""


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
@given(jobs_of(NEEDS, seconds=st.integers(0, 9).map(float)), INVENTORIES, st.integers(0, 3), st.booleans())
def test_the_queue_is_first_fit(jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    schedule = simulate(jobs, table.fresh())
    # Leases that end at one moment come back in no promised order, and slots with them; GPUs do not depend on it.
    assert [(s.job.index, s.start_s, s.lease.gpu_ids) for s in schedule.starts] == first_fit_by_hand(jobs, table)
    assert schedule.makespan_s == makespan_s(jobs, table.fresh())
    assert {job.index for job in schedule.unplaced} == {job.index for job in jobs if table.why_never(job.need)}


BUDGETS = st.builds(
    Need, gpus=st.just(1), memory_gb=st.sampled_from([1.5, 20, 40, 41, 71.5, 80, 143]), shared=st.just(True)
)
"""Needs of one kind, of which a table may serve some and not others."""


@pytest.mark.full
@THOROUGH
@given(jobs_of(st.one_of(NEEDS, BUDGETS, BUDGETS), max_size=40), INVENTORIES, st.integers(0, 3), st.booleans())
def test_the_queue_is_first_fit_where_needs_differ_in_memory(
    jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool
) -> None:
    table = LeaseTable(gpus, cpu_units, mix_models)
    schedule = simulate(jobs, table.fresh())
    by_hand = first_fit_by_hand(jobs, table)
    assert [(s.job.index, s.start_s, s.lease.gpu_ids) for s in schedule.starts] == by_hand
    assert {job.index for job in schedule.unplaced} == {job.index for job in jobs if table.why_never(job.need)}


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
@given(jobs_of(NEEDS), INVENTORIES, st.integers(0, 3), st.booleans())
def test_every_unit_once_and_no_card_twice(jobs: list[Job], gpus: Inventory, cpu_units: int, mix_models: bool) -> None:
    schedule = simulate(jobs, LeaseTable(gpus, cpu_units, mix_models))
    placed = [start.job.index for start in schedule.starts]
    assert sorted([*placed, *(job.index for job in schedule.unplaced)]) == sorted(job.index for job in jobs)
    for start in schedule.starts:
        assert len(start.lease.gpus) == start.job.need.gpus
        assert mix_models or len({gpu.model for gpu in start.lease.gpus}) <= 1
        assert start.end_s == start.start_s + start.job.expected_s
        beside = [s for s in schedule.starts if s is not start and s.start_s <= start.start_s < s.end_s]
        assert not beside or not any(s.job.need.exclusive for s in [start, *beside])
        assert not {gpu for s in beside for gpu in s.lease.gpu_ids} & set(start.lease.gpu_ids)
        assert not start.lease.is_cpu or sum(s.lease.is_cpu for s in beside) < cpu_units


@pytest.mark.full
@THOROUGH
@given(jobs_of(SHARED_NEEDS), INVENTORIES, st.integers(1, 3))
def test_no_card_idles_while_a_queued_unit_fits(jobs: list[Job], gpus: Inventory, cpu_units: int) -> None:
    """At every event, whoever has not started would not have fitted on what was free, counted anew."""
    schedule = simulate(jobs, LeaseTable(gpus, cpu_units))
    for now_s in {moment for s in schedule.starts for moment in (s.start_s, s.end_s)}:
        running = [s for s in schedule.starts if s.start_s <= now_s < s.end_s]
        busy = {gpu for s in running for gpu in s.lease.gpu_ids}
        for waiting in (s.job.need for s in schedule.starts if s.start_s > now_s):
            if waiting.gpus == 0:
                assert sum(s.lease.is_cpu for s in running) == cpu_units
                continue
            free = [
                gpu.model
                for gpu in gpus.gpus
                if gpu.gpu_id not in busy
                and gpu.memory_gb >= waiting.memory_gb
                and (waiting.model or "").lower() in gpu.model.lower()
            ]
            assert all(free.count(model) < waiting.gpus for model in free)


@pytest.mark.full
@THOROUGH
@given(jobs_of(widths(8), max_size=40).filter(bool))
def test_any_order_is_within_the_proven_factor(jobs: list[Job]) -> None:
    """(2 - 1/m) times the greater of area and longest unit, whatever the order: Garey and Graham's bound."""
    bound_s = max(sum(job.need.gpus * job.expected_s for job in jobs) / 8, *(job.expected_s for job in jobs))
    assert makespan_s(jobs, LeaseTable(EIGHT, 1)) <= (2 - 1 / 8) * bound_s * (1 + 1e-9)


@QUICK
@given(jobs_of(SHARED_NEEDS), st.integers(1, 3))
def test_units_without_gpus_never_keep_one_with_gpus_waiting(jobs: list[Job], cpu_units: int) -> None:
    def gpu_starts(schedule: Schedule[Lease]) -> dict[int, float]:
        return {s.job.index: s.start_s for s in schedule.starts if s.job.need.gpus}

    table = LeaseTable(EIGHT, cpu_units)
    only_gpu = [job for job in jobs if job.need.gpus]
    assert gpu_starts(simulate(jobs, table.fresh())) == gpu_starts(simulate(only_gpu, table.fresh()))


@QUICK
@given(jobs_of(NEEDS), INVENTORIES)
def test_the_real_queue_does_what_was_simulated(jobs: list[Job], gpus: Inventory) -> None:
    """A dispatcher in small: it asks the queue whenever something ended, on a clock that moves to the next end."""
    table, clock, queue = LeaseTable(gpus, 2), FakeClock(), Queue(jobs)
    running: list[tuple[float, int, Lease]] = []
    started = []
    while True:
        while (chosen := queue.next(table)) is not None:
            job, lease = chosen
            started.append((job.index, clock.monotonic_s(), lease.gpu_ids))
            heapq.heappush(running, (clock.monotonic_s() + job.expected_s, len(started), lease))
        if not running:
            break
        clock.now_s = running[0][0]
        while running and running[0][0] == clock.now_s:
            table.give_back(heapq.heappop(running)[2])
    planned = simulate(jobs, table.fresh())
    assert started == [(s.job.index, s.start_s, s.lease.gpu_ids) for s in planned.starts]
    assert queue.drain() == list(planned.unplaced)


def test_an_exclusive_unit_and_a_wide_one_get_their_turn_at_the_latest_at_the_end() -> None:
    narrow = [Job(i, Need(gpus=1), 5.0 + i) for i in range(20)]
    wide, alone = Job(20, Need(gpus=8), 1.0), Job(21, Need(gpus=1, exclusive=True), 1.0)
    late = simulate([*narrow[:8], alone, wide, *narrow[8:]], LeaseTable(EIGHT, 1))
    assert [s.job.index for s in late.starts][-2:] == [21, 20]
    first = simulate([alone, wide, *narrow], LeaseTable(EIGHT, 1))
    assert [s.job.index for s in first.starts][:2] == [21, 20]


def test_durations_can_be_other_than_expected() -> None:
    jobs = [Job(1, Need(gpus=1), 5.0), Job(0, Need(gpus=1), 7.0)]
    assert makespan_s(jobs, LeaseTable(inventory((1, "A", 8.0)), 1), seconds=[100.0, 1.0]) == 101.0


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


class CountingTable(LeaseTable):
    """A table that counts what it is asked."""

    num_asked = 0
    num_given_back = 0

    def lease(self, need: Need) -> Lease | None:
        self.num_asked += 1
        return super().lease(need)

    def give_back(self, lease: Lease) -> None:
        self.num_given_back += 1
        super().give_back(lease)


def many_units(num_units: int) -> list[Job]:
    return [Job(i, Need(gpus=WIDTHS[i % len(WIDTHS)]), 1.0 + i * 7 % 101) for i in range(num_units)]


def num_calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's own included: a cost that is the same on every machine, however busy."""
    calls = Counter[str]()

    def count(frame: object, event: str, argument: object) -> None:
        calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls["call"] + calls["c_call"]


def test_a_start_costs_as_many_tries_as_there_are_distinct_needs() -> None:
    table = CountingTable(EIGHT, 4)
    assert len(simulate(many_units(2000), table).starts) == table.num_given_back == 2000
    # each unit is given once, and at each of at most so many ends each need is refused once
    assert 2000 < table.num_asked <= 2000 + (1 + table.num_given_back) * len(WIDTHS)


def test_budgets_that_are_all_different_are_not_all_tried() -> None:
    """Every unit has a need of its own; largest first, each refusal would be followed by the next one's."""
    table = CountingTable(EIGHT, 4)
    jobs = [Job(i, Need(gpus=1, memory_gb=40 - i / 100, shared=True), 1.0 + i * 7 % 101) for i in range(2000)]
    assert len(simulate(jobs, table).starts) == 2000
    assert table.num_asked <= 3 * 2000


def test_the_cost_of_a_simulation_grows_with_its_units_and_no_faster() -> None:
    few, many = (num_calls_of(partial(simulate, many_units(n), LeaseTable(EIGHT, 4))) for n in (500, 2000))
    assert many < 4.4 * few
    assert many < 2000 * MAX_CALLS_PER_UNIT
