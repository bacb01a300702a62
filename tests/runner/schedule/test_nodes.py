"""Leases over the nodes of a cluster: on one node, or whole nodes; nothing of a lost node; nothing twice."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.need import Need
from harness.machine.inventory import Gpu, Inventory
from harness.runner.schedule.leases import Lease, LeaseTable
from tests.support.packing_cases import NEEDS, THOROUGH

CPU_UNITS = 2


def cluster(*nodes: tuple[int, str, float]) -> LeaseTable:
    """A table of nodes by their GPUs: (how many, model, memory in GB)."""
    gpus = tuple(
        Gpu(f"n{node}/ID-{i}", i, model, memory_gb, (9, 0), node=f"n{node}")
        for node, (num_gpus, model, memory_gb) in enumerate(nodes)
        for i in range(num_gpus)
    )
    return LeaseTable(Inventory(gpus=gpus), CPU_UNITS, nodes=[f"n{node}" for node in range(len(nodes))])


H200 = (4, "H200", 143.0)
CLUSTERS = st.sampled_from([(H200,), (H200, H200), (H200, H200, H200), (H200, (2, "A100", 80.0), H200, (0, "", 0.0))])
BUDGETS = st.builds(Need, gpus=st.just(1), memory_gb=st.sampled_from([20.0, 71.5, 80.0]), shared=st.just(True))
SPANNING = st.builds(lambda nodes, each: Need(gpus=nodes * each, nodes=nodes), st.integers(2, 3), st.integers(1, 4))


def got(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def fits(table: LeaseTable, need: Need, out: list[Lease], lost: set[str]) -> bool:
    """Whether some set of GPUs, or a CPU slot, serves a need: every set on every choice of nodes is tried."""
    num_out = Counter(node for lease in out for node in lease.nodes)
    closed = {node for lease in out if lease.exclusive for node in lease.nodes}
    alone = need.exclusive or need.nodes > 1
    nodes = {gpu.node for gpu in table.choice.gpus} | {f"n{i}" for i in range(4) if table.cpu_units > CPU_UNITS * i}
    usable = [node for node in sorted(nodes - lost - closed) if not (alone and num_out[node])]
    if need.gpus == 0:
        num_cpu = Counter(lease.cpu_node for lease in out if lease.is_cpu)
        return any(num_cpu[node] < CPU_UNITS for node in usable)

    def num_fitting(node: str, model: str) -> int:
        return sum(
            gpu.node == node
            and gpu.model == model
            and gpu.memory_gb >= need.memory_gb
            and (need.model or "").lower() in model.lower()
            and sum((lease.budget_bytes or 1e15) for lease in out if gpu in lease.gpus)
            <= (gpu.memory_gb * 1e9 - need.budget_bytes if need.shared else 0)
            for gpu in table.choice.gpus
        )

    each = need.gpus // need.nodes
    return any(
        all(num_fitting(node, model) >= each for node in chosen)
        for chosen in combinations(usable, need.nodes)
        for model in ("H200", "A100")
    )


@pytest.mark.full
@THOROUGH
@given(CLUSTERS, st.lists(st.tuples(st.integers(0, 11), st.one_of(NEEDS, BUDGETS, SPANNING)), max_size=60))
def test_a_lease_is_given_where_one_fits_and_nothing_is_given_twice(
    nodes: tuple[tuple[int, str, float], ...], steps: list[tuple[int, Need]]
) -> None:
    table = cluster(*nodes)
    out: list[Lease] = []
    lost: set[str] = set()
    for number, (deed, need) in enumerate(steps):
        node = f"n{number % len(nodes)}"
        if deed == 0:
            lost.add(node)
            table.lose_node(node)
        elif deed < 5 and out:
            table.give_back(out.pop(number % len(out)))
        else:
            possible = fits(table, need, out, lost)
            lease = table.lease(need)
            assert (lease is not None) == possible
            if lease is not None:
                assert not set(lease.nodes) & lost
                assert len(lease.nodes) == need.nodes and len(lease.gpus) == need.gpus
                assert {gpu.node for gpu in lease.gpus} in (set(), set(lease.nodes))
                assert set(Counter(gpu.node for gpu in lease.gpus).values()) <= {need.gpus // need.nodes}
                out.append(lease)
        check(table, out)
    for lease in out:
        table.give_back(lease)
    assert table.free_gpus == tuple(gpu for gpu in table.choice.gpus if gpu.node not in lost)
    assert table.num_cpu_free == CPU_UNITS * (len(nodes) - len(lost))


def check(table: LeaseTable, out: list[Lease]) -> None:
    """No GPU beyond its memory, no node beyond its CPU slots, and nothing beside an exclusive lease."""
    for gpu in table.choice.gpus:
        holders = [lease for lease in out if gpu in lease.gpus]
        assert len(holders) <= 1 or all(lease.budget_bytes for lease in holders)
        assert sum(lease.budget_bytes for lease in holders) <= gpu.memory_gb * 1e9
    for node, num_cpu in Counter(lease.cpu_node for lease in out if lease.is_cpu).items():
        assert num_cpu <= CPU_UNITS, node
    for lease in out:
        assert not lease.exclusive or not any(set(lease.nodes) & set(o.nodes) for o in out if o is not lease)
    assert len({lease.slot for lease in out}) == len(out)


def test_a_unit_goes_where_it_leaves_the_fewest_gpus_free() -> None:
    table = cluster(H200, H200, H200)
    assert got(table.lease(Need(gpus=2))).nodes == ("n0",)
    assert got(table.lease(Need(gpus=3))).nodes == ("n1",)
    assert got(table.lease(Need(gpus=1))).nodes == ("n1",)
    assert got(table.lease(Need(gpus=1))).nodes == ("n0",)
    assert got(table.lease(Need(gpus=4))).nodes == ("n2",)


def test_a_unit_without_gpus_goes_where_most_cpu_slots_are_free() -> None:
    table = cluster(H200, H200)
    assert [got(table.lease(Need())).nodes for _ in range(4)] == [("n0",), ("n1",), ("n0",), ("n1",)]
    assert table.lease(Need()) is None


def test_an_exclusive_unit_is_alone_on_its_node_and_not_in_the_cluster() -> None:
    table = cluster(H200, H200)
    got(table.lease(Need(gpus=1)))
    alone = got(table.lease(Need(gpus=1, exclusive=True)))
    assert alone.nodes == ("n1",)
    assert table.lease(Need(gpus=4)) is None
    assert [got(table.lease(Need())).nodes for _ in range(2)] == [("n0",)] * 2
    assert table.lease(Need()) is None
    table.give_back(alone)
    assert got(table.lease(Need(gpus=4))).nodes == ("n1",)


def test_a_unit_of_several_nodes_has_them_to_itself() -> None:
    table = cluster(H200, H200, H200)
    wide = Need(gpus=4, nodes=2)
    one = got(table.lease(Need()))
    lease = got(table.lease(wide))
    assert (lease.nodes, len(lease.gpus), lease.exclusive) == (("n1", "n2"), 4, True)
    assert table.lease(wide) is None
    assert got(table.lease(Need(gpus=1))).nodes == one.nodes
    table.give_back(lease)
    assert got(table.lease(wide)) == lease


def test_what_is_lost_is_leased_no_more() -> None:
    table = cluster(H200, H200)
    lease = got(table.lease(Need(gpus=4)))
    table.lose_node("n0")
    table.lose_node("n1")
    assert "every node of this run is lost" in table.why_never(Need())
    table.give_back(lease)
    assert table.lease(Need(gpus=1)) is None and table.lease(Need()) is None


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        (Need(gpus=8), "needs 8 GPUs; a file stays on one node, and no node has more than 4 of them"),
        (Need(gpus=8, nodes=2), ""),
        (Need(gpus=4, nodes=4), "needs 4 GPUs on 4 nodes; 3 of 3 nodes have 1 of them"),
        (Need(gpus=9, nodes=3), "needs 9 GPUs on 3 nodes; 2 of 3 nodes have 3 of them"),
        (Need(gpus=6, nodes=3), "mixed models are not allowed in one lease, and no single model is on as many nodes"),
    ],
)
def test_what_keeps_nodes_from_serving_is_named(need: Need, reason: str) -> None:
    said = cluster(H200, (2, "A100", 80.0), H200).why_never(need)
    assert reason in said and bool(said) == bool(reason)


def test_models_differ_between_the_nodes_of_a_unit_where_they_may() -> None:
    gpus = cluster(H200, (2, "A100", 80.0), H200).choice.gpus
    table = LeaseTable(Inventory(gpus=gpus), CPU_UNITS, mix_models=True, nodes=["n0", "n1", "n2"])
    assert got(table.lease(Need(gpus=4, nodes=2))).nodes == ("n0", "n2"), "one model where one will do"
    table = table.fresh()
    assert got(table.lease(Need(gpus=6, nodes=3))).nodes == ("n0", "n1", "n2")
