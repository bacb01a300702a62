"""GPUs that units share: budgets within the memory, best fit, nothing lost, and bounds that hold."""

from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, simulate
from harness.runner.schedule.leases import Lease, LeaseTable
from harness.runner.schedule.makespan_bounds import Term, lower_bound
from harness.runner.schedule.packing import plan
from tests.support.packing_cases import INVENTORIES, NEEDS, QUICK, THOROUGH, inventory, jobs_of


def shared(memory_gb: float) -> Need:
    return Need(gpus=1, memory_gb=memory_gb, shared=True)


BUDGETS = st.sampled_from([0.5, 3.0, 10.0, 40.0, 71.5, 72.0, 143.0, 200.0]).map(shared)
MIXED = st.one_of(NEEDS, BUDGETS, BUDGETS)
TWO = inventory((2, "A100", 80.0))


def got(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def check_budgets(gpus: Inventory, out: list[Lease]) -> None:
    """Each GPU has one lease of its own, or shared ones that its memory holds."""
    for gpu in gpus.gpus:
        holders = [lease for lease in out if gpu.gpu_id in lease.gpu_ids]
        assert len(holders) <= 1 or all(lease.budget_bytes for lease in holders)
        assert sum(lease.budget_bytes for lease in holders) <= round(gpu.memory_gb * 1e9)


def test_units_share_a_gpu_up_to_its_memory_and_no_further() -> None:
    table = LeaseTable(TWO, cpu_units=1)
    first = [got(table.lease(shared(40))) for _ in range(2)]
    assert {lease.gpu_ids for lease in first} == {("ID-0",)}
    assert got(table.lease(Need(gpus=1))).gpu_ids == ("ID-1",)
    assert table.lease(shared(0.001)) is None
    table.give_back(first[0])
    assert table.lease(Need(gpus=1)) is None, "a unit still shares the GPU"
    assert got(table.lease(shared(40))).gpu_ids == ("ID-0",)


def test_a_budget_goes_where_it_leaves_the_least_memory() -> None:
    table = LeaseTable(inventory((3, "A100", 80.0)), cpu_units=1)
    assert got(table.lease(shared(50))).gpu_ids == ("ID-0",)
    assert got(table.lease(shared(60))).gpu_ids == ("ID-1",)
    assert got(table.lease(shared(20))).gpu_ids == ("ID-1",)
    assert got(table.lease(shared(20))).gpu_ids == ("ID-0",)
    assert [gpu.gpu_id for gpu in table.free_gpus] == ["ID-2"]


def test_a_quarantined_gpu_is_shared_no_further() -> None:
    table = LeaseTable(inventory((1, "A100", 80.0)), cpu_units=1)
    lease = got(table.lease(shared(10)))
    table.quarantine("ID-0")
    assert table.lease(shared(10)) is None
    table.give_back(lease)
    assert table.lease(shared(10)) is None
    assert table.free_gpus == ()


def test_a_budget_that_no_gpu_holds_never_runs() -> None:
    assert "memory: 0 of 2 have 81 GB" in LeaseTable(TWO, 1).why_never(shared(81))
    assert LeaseTable(TWO, 1).why_never(shared(80)) == ""


@pytest.mark.full
@THOROUGH
@given(INVENTORIES, st.lists(st.tuples(st.integers(0, 9), MIXED), max_size=60))
def test_no_budget_is_exceeded_and_leases_return_everything(gpus: Inventory, steps: list[tuple[int, Need]]) -> None:
    table = LeaseTable(gpus, 2)
    out: list[Lease] = []
    quarantined: set[str] = set()
    for deed, need in steps:
        if deed == 0 and gpus.gpus:
            quarantined.add(gpus.gpus[-1].gpu_id)
            table.quarantine(gpus.gpus[-1].gpu_id)
        elif deed < 4 and out:
            table.give_back(out.pop(deed % len(out)))
        elif (lease := table.lease(need)) is None:
            assert table.lease(need) is None, "refused, it stays refused"
        else:
            assert not set(lease.gpu_ids) & quarantined
            assert all(gpu.memory_gb >= need.memory_gb for gpu in lease.gpus)
            out.append(lease)
        check_budgets(gpus, out)
        held = {gpu_id for lease in out for gpu_id in lease.gpu_ids}
        assert {gpu.gpu_id for gpu in table.free_gpus} == {gpu.gpu_id for gpu in gpus.gpus} - held - quarantined
    for lease in out:
        table.give_back(lease)
    fresh = table.fresh()
    for gpu in gpus.gpus:
        if gpu.gpu_id not in quarantined:
            assert got(table.lease(shared(gpu.memory_gb))).budget_bytes == round(gpu.memory_gb * 1e9)
        assert fresh.lease(shared(gpu.memory_gb)) is not None


@pytest.mark.full
@QUICK
@given(jobs_of(MIXED, max_size=30), INVENTORIES)
def test_no_budget_is_exceeded_at_any_time_of_a_plan(jobs: list[Job], gpus: Inventory) -> None:
    table = LeaseTable(gpus, 2)
    made = plan(jobs, table)
    schedule = simulate(made.order, table.fresh())
    for moment_s in {start.start_s for start in schedule.starts}:
        check_budgets(gpus, [s.lease for s in schedule.starts if s.start_s <= moment_s < s.end_s])
    assert len(made.placements) + len(made.never) == len(jobs)
    assert made.bound.value_s <= made.makespan_s * (1 + 1e-9)


def optimum_s(jobs: list[Job], memories: list[float]) -> float:
    """The least makespan, by trying every order and every choice of GPUs, each unit as early as possible."""
    places = range(len(memories))
    options = [
        [(place,) for place in places if memories[place] >= job.need.memory_gb]
        if job.need.shared
        else list(combinations(places, job.need.gpus))
        for job in jobs
    ]
    best_s = float("inf")
    for order in permutations(range(len(jobs))):
        for chosen in product(*(options[i] for i in order)):
            placed: list[tuple[float, float, tuple[int, ...], Need]] = []
            for i, gpus in zip(order, chosen, strict=True):
                for start_s in sorted({0.0, *(end_s for _, end_s, _, _ in placed)}):
                    entry = (start_s, start_s + jobs[i].expected_s, gpus, jobs[i].need)
                    if fits([*placed, entry], memories):
                        placed.append(entry)
                        break
            best_s = min(best_s, max((end_s for _, end_s, _, _ in placed), default=0.0))
    return best_s


def fits(placed: list[tuple[float, float, tuple[int, ...], Need]], memories: list[float]) -> bool:
    for moment_s in {start_s for start_s, _, _, _ in placed}:
        for place, memory_gb in enumerate(memories):
            here = [need for start_s, end_s, gpus, need in placed if start_s <= moment_s < end_s and place in gpus]
            if len(here) > 1 and not all(need.shared for need in here):
                return False
            if sum(need.memory_gb for need in here if need.shared) > memory_gb:
                return False
    return True


TINY_NEEDS = st.one_of(
    st.sampled_from([10.0, 20.0, 27.0, 40.0, 41.0, 60.0, 80.0]).map(shared),
    st.integers(1, 2).map(lambda gpus: Need(gpus=gpus)),
)


@pytest.mark.full
@THOROUGH
@given(jobs_of(TINY_NEEDS, max_size=4), st.sampled_from([[80.0, 80.0], [80.0, 60.0]]))
def test_no_schedule_beats_the_bound(jobs: list[Job], memories: list[float]) -> None:
    table = LeaseTable(inventory(*((1, "A100", gb) for gb in memories)), 1)
    jobs = [job for job in jobs if not table.why_never(job.need)]
    optimum = optimum_s(jobs, memories)
    assert lower_bound(jobs, table).value_s <= optimum * (1 + 1e-9)
    assert plan(jobs, table).makespan_s >= optimum * (1 - 1e-9), "the optimum was not one"


@pytest.mark.parametrize(
    ("jobs", "term", "value_s"),
    [
        ([(shared(20), 8.0)] * 8, Term.LONGEST, 8.0),
        ([(shared(20), 8.0)] * 16, Term.MEMORY, 16.0),
        ([(shared(41), 8.0)] * 4, Term.AREA, 16.0),  # half of the memory and more is a whole GPU
        ([(shared(27), 6.0)] * 8, Term.MEMORY, 8.1),
        ([(shared(10), 8.0), (Need(gpus=2), 5.0)], Term.BESIDE, 13.0),
    ],
)
def test_memory_sets_the_bound(jobs: list[tuple[Need, float]], term: Term, value_s: float) -> None:
    table = LeaseTable(TWO, 1)
    bound = lower_bound([Job(i, need, seconds) for i, (need, seconds) in enumerate(jobs)], table)
    assert bound.term is term
    assert bound.value_s == pytest.approx(value_s)
