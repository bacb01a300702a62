"""Leases: which GPUs a need is given, nothing twice, nothing lost, exclusive alone, budgets within the memory."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need
from harness.runner.schedule.leases import Lease, LeaseTable
from tests.support.packing_cases import EIGHT, INVENTORIES, NEEDS, QUICK, THOROUGH, inventory

CPU = Need()
TWO = inventory((2, "A100", 80.0))


def shared(memory_gb: float) -> Need:
    return Need(gpus=1, memory_gb=memory_gb, shared=True)


MIXED = st.one_of(NEEDS, st.sampled_from([0.5, 3.0, 10.0, 40.0, 71.5, 72.0, 143.0, 200.0]).map(shared))


def got(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


# ---- the choice of GPUs


def chosen(gpus: Inventory, need: Need, taken: str = "", *, mix_models: bool = False) -> str:
    """Indexes of the leased GPUs where those of `taken` are out."""
    table = LeaseTable(gpus, 0, mix_models)
    for index in taken:
        table.quarantine(f"ID-{index}")
    lease = table.lease(need)
    return "".join(str(gpu.index) for gpu in lease.gpus) if lease else ""


BOTH = inventory((2, "A100", 80.0), (3, "H200", 143.0))
BIG_FIRST = inventory((2, "H200", 143.0), (2, "A100", 80.0))
MIG = Inventory(
    gpus=tuple(
        Gpu(f"ID-{i}", i, "H100 MIG 1g.10gb", 10.0, is_mig=True) if i < 2 else Gpu(f"ID-{i}", i, "H100", 80.0)
        for i in range(4)
    )
)


@pytest.mark.parametrize(
    ("gpus", "need", "taken", "expected"),
    [
        (EIGHT, Need(gpus=2), "", "01"),
        (EIGHT, Need(gpus=2), "025", "34"),  # neighbours
        (BIG_FIRST, Need(gpus=1), "", "2"),  # big GPUs are kept for those who need them
        (BIG_FIRST, Need(gpus=2), "", "23"),
        (BIG_FIRST, Need(gpus=1, memory_gb=100), "", "0"),
        (BIG_FIRST, Need(gpus=1, model="h200"), "", "0"),
        (inventory((3, "H100", 80.0), (2, "A100", 80.0)), Need(gpus=1), "", "3"),  # the model with the fewest left
        (inventory((3, "H100", 80.0), (2, "A100", 80.0)), Need(gpus=1), "12", "0"),
        (BOTH, Need(gpus=4), "", ""),
        (MIG, Need(gpus=1), "", "0"),
        (MIG, Need(gpus=2), "", "23"),
        (Inventory(gpus=(Gpu("ID-0", 0, "odd", 0.0),)), Need(gpus=1), "", "0"),
        (Inventory(gpus=(Gpu("ID-0", 0, "odd", 0.0),)), Need(gpus=1, memory_gb=1), "", ""),  # unknown memory
        (Inventory(gpus=(Gpu("ID-0", 0, "odd", 0.0),)), Need(gpus=1, min_capability=(1, 0)), "", ""),
    ],
)
def test_the_best_free_gpus_are_leased(gpus: Inventory, need: Need, taken: str, expected: str) -> None:
    assert chosen(gpus, need, taken) == expected


def test_models_are_mixed_only_where_allowed_and_then_last() -> None:
    found = [chosen(BOTH, Need(gpus=gpus), taken, mix_models=True) for gpus, taken in ((4, ""), (3, ""), (2, "4"))]
    assert found == ["0123", "234", "01"]
    assert chosen(MIG, Need(gpus=3), mix_models=True) == ""


@pytest.mark.parametrize(
    ("gpus", "need", "reason"),
    [
        (EIGHT, Need(gpus=16), "needs 16 GPUs; this run has 8 x H200 143 GB"),
        (EIGHT, Need(gpus=2, model="B200"), "model: 0 of 8 have 'B200' in their name; this run has 8 x H200 143 GB"),
        (EIGHT, Need(gpus=2, memory_gb=180), "memory: 0 of 8 have 180 GB; this run has"),
        (EIGHT, Need(gpus=1, min_capability=(10, 0)), "capability: 0 of 8 have 10.0; this run has"),
        (EIGHT, Need(gpus=8), ""),
        (BOTH, Need(gpus=4), "mixed models are not allowed in one lease, and no single model has 4"),
        (BOTH, Need(gpus=1, model="A100", memory_gb=100), "memory: 0 of 2 have 100 GB"),
        (MIG, Need(gpus=3), "MIG instances cannot be combined, and 2 of these GPUs are not partitioned"),
        (TWO, shared(81), "memory: 0 of 2 have 81 GB"),
        (TWO, shared(80), ""),
        (EIGHT, CPU, "needs 0 GPUs, hence a CPU slot; this run has none (cpu_units is 0)"),
    ],
)
def test_the_field_that_fails_is_named(gpus: Inventory, need: Need, reason: str) -> None:
    said = LeaseTable(gpus, 0).why_never(need)
    assert (said == "") == (reason == "")
    assert reason in said
    assert said == "" or said.startswith(f"needs {need}")


@pytest.mark.parametrize("mix_models", [False, True])
def test_a_lease_lies_within_one_node_the_fullest_that_fits(mix_models: bool) -> None:
    nodes = Inventory(gpus=tuple(Gpu(f"ID-{i}", i, "GPU", 0.0, node="ab"[i // 3]) for i in range(6)))
    wanted = ((1, "0"), (2, "0"), (3, "0"), (2, "03"), (2, "013"))
    found = [chosen(nodes, Need(gpus=gpus), taken, mix_models=mix_models) for gpus, taken in wanted]
    assert found == ["1", "12", "345", "12", "45"]
    table = LeaseTable(nodes, 0, mix_models)
    assert "no node has 4" in table.why_never(Need(gpus=4))
    table.add([Gpu(f"ID-{i}", i, "GPU", 0.0, node="c") for i in range(6, 10)])
    assert table.why_never(Need(gpus=4)) == ""


@QUICK
@given(INVENTORIES, NEEDS.filter(lambda need: need.gpus > 0), st.sets(st.integers(0, 7)), st.booleans())
def test_a_set_is_chosen_wherever_there_is_one(gpus: Inventory, need: Need, taken: set[int], mix_models: bool) -> None:
    """Against every set of free GPUs, tried one by one."""
    table = LeaseTable(gpus, 1, mix_models)
    for gpu in gpus.gpus:
        if gpu.index in taken:
            table.quarantine(gpu.gpu_id)

    def serves(members: tuple[Gpu, ...]) -> bool:
        adequate = all(
            (need.model or "").lower() in gpu.model.lower() and gpu.memory_gb >= need.memory_gb for gpu in members
        )
        return adequate and (mix_models or len({gpu.model for gpu in members}) == 1)

    possible = [members for members in combinations(table.free_gpus, need.gpus) if serves(members)]
    lease = table.lease(need)
    assert (lease is not None and lease.gpus in possible) if possible else lease is None
    assert bool(table.why_never(need)) == (not possible)
    able = {gpu.gpu_id for members in combinations(table.gpus, need.gpus) if serves(members) for gpu in members}
    assert table.eligible(need) == able


# ---- the table


def test_a_unit_without_gpus_takes_a_cpu_place_and_no_gpu() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    first = got(table.lease(CPU))
    assert (first.is_cpu, first.gpus, table.num_cpu_free) == (True, (), 1)
    got(table.lease(CPU))
    assert table.lease(CPU) is None
    assert len(got(table.lease(Need(gpus=8))).gpus) == 8
    table.give_back(first)
    assert table.lease(CPU) is not None


def test_an_exclusive_lease_is_alone() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    alone = Need(gpus=1, exclusive=True)
    lease = got(table.lease(CPU))
    assert table.lease(alone) is None
    table.give_back(lease)
    exclusive = got(table.lease(alone))
    assert exclusive.exclusive
    assert table.lease(CPU) is None
    assert table.lease(Need(gpus=1)) is None
    table.give_back(exclusive)
    assert table.lease(Need(gpus=8)) is not None


def test_giving_back_what_is_not_out_is_our_bug() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    lease = got(table.lease(Need(gpus=2)))
    table.give_back(lease)
    with pytest.raises(AssertionError, match="not leased"):
        table.give_back(lease)
    assert len(table.free_gpus) == 8
    got(table.lease(Need(gpus=2)))  # an equal lease is out: still not the one that was given back
    with pytest.raises(AssertionError, match="not leased"):
        table.give_back(lease)


def test_a_quarantined_gpu_is_never_leased_again() -> None:
    table = LeaseTable(inventory((3, "H200", 143.0)), cpu_units=1)
    lease = got(table.lease(Need(gpus=2)))
    table.quarantine("ID-1")  # while it is out
    table.quarantine("ID-2")  # while it is free
    table.give_back(lease)
    assert [gpu.gpu_id for gpu in table.free_gpus] == ["ID-0"]
    assert table.lease(Need(gpus=2)) is None
    assert table.why_never(Need(gpus=2)) == "needs 2 GPUs; this run has 1 x H200 143 GB (2 quarantined)"
    assert table.why_never(Need(gpus=1)) == ""
    assert table.fresh().why_never(Need(gpus=3)) == ""


def test_who_keeps_a_file_from_running() -> None:
    table = LeaseTable(inventory((3, "H200", 143.0)), cpu_units=1)
    asks = {"test_a": Need(gpus=1), "test_b": CPU, "test_c": Need(gpus=4)}
    said = table.who_keeps_it(asks)
    assert (
        said
        == "; only test_c asks for that: move it to a file of its own, so that the other tests of this file can run"
    )
    assert table.who_keeps_it({**asks, "test_c": Need(gpus=2)}) == "", "no test alone does"
    assert table.who_keeps_it({"test_c": Need(gpus=4), "test_d": Need(gpus=5)}) == "", "there are no others"
    many = {f"test_{number}": Need(gpus=4) for number in range(7)}
    assert "only test_0, test_1, test_2 and 4 more ask for that" in table.who_keeps_it({**asks, **many, "test_c": CPU})


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


@pytest.mark.full
@THOROUGH
@given(INVENTORIES, st.integers(0, 3), st.booleans(), st.lists(st.tuples(st.integers(0, 9), MIXED), max_size=60))
def test_no_gpu_is_leased_twice_none_is_lost_and_no_budget_exceeded(
    gpus: Inventory, cpu_units: int, mix_models: bool, steps: list[tuple[int, Need]]
) -> None:
    """A walk of leases, returns and quarantines, with a ledger kept beside the table."""
    table = LeaseTable(gpus, cpu_units, mix_models)
    out: list[Lease] = []
    quarantined: set[str] = set()
    for deed, need in steps:
        if deed == 0 and gpus.gpus:
            quarantined.add(gpus.gpus[need.gpus % len(gpus.gpus)].gpu_id)
            table.quarantine(gpus.gpus[need.gpus % len(gpus.gpus)].gpu_id)
        elif deed < 4 and out:
            table.give_back(out.pop(deed % len(out)))
        elif (lease := table.lease(need)) is None:
            assert table.lease(need) is None, "refused, it stays refused"
        else:
            assert (len(lease.gpus), lease.budget_bytes) == (need.gpus, need.budget_bytes)
            assert not set(lease.gpu_ids) & quarantined
            assert not out or not (need.exclusive or any(other.exclusive for other in out))
            assert mix_models or len({gpu.model for gpu in lease.gpus}) <= 1
            assert not table.why_never(need)
            out.append(lease)
        held = {gpu_id for lease in out for gpu_id in lease.gpu_ids}
        for gpu in gpus.gpus:
            holders = [lease for lease in out if gpu.gpu_id in lease.gpu_ids]
            assert len(holders) <= 1 or all(lease.budget_bytes for lease in holders)
            assert sum(lease.budget_bytes for lease in holders) <= round(gpu.memory_gb * 1e9)
        assert {gpu.gpu_id for gpu in table.free_gpus} == {gpu.gpu_id for gpu in gpus.gpus} - held - quarantined
        assert table.num_cpu_free == cpu_units - sum(lease.is_cpu for lease in out)
        assert sorted(lease.slot for lease in out) == [lease.slot for lease in table.leases]
        assert len({lease.slot for lease in out}) == len(out)
    for lease in out:
        table.give_back(lease)
    for gpu in gpus.gpus:
        assert (table.lease(shared(gpu.memory_gb)) is None) <= bool(quarantined)
        assert table.fresh().lease(shared(gpu.memory_gb)) is not None
