"""Leases on nodes: one node for a unit, several for one that asks for them, nothing of a node that is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.need import Need
from harness.machine.inventory import Gpu, Inventory
from harness.plugin import MarkError, merge_needs, need_of_mark
from harness.runner.cluster_address import Boot, ClusterAddress, parse_cluster
from harness.runner.schedule.leases import Lease, LeaseTable

pytestmark = pytest.mark.full


def table(*sizes: int, cpu_units: int = 1) -> LeaseTable:
    nodes = [f"node{number}" for number in range(len(sizes))]
    of_node = [(node, index) for node, size in zip(nodes, sizes, strict=True) for index in range(size)]
    gpus = tuple(Gpu(f"{node}-{index}", place, "A", 80.0, node=node) for place, (node, index) in enumerate(of_node))
    return LeaseTable(Inventory(gpus), cpu_units, nodes=nodes)


needs = st.builds(
    lambda on_each, nodes: Need(on_each * nodes, nodes=nodes if on_each else 1), st.integers(0, 3), st.integers(1, 3)
)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    steps=st.lists(needs | st.integers(0, 9) | st.sampled_from(["node0", "node1"]), max_size=30),
)
def test_leases_stay_on_their_nodes_and_off_lost_ones(sizes: list[int], steps: list[Need | int | str]) -> None:
    leases = table(*sizes)
    out: list[Lease] = []
    lost: set[str] = set()
    for step in steps:
        if isinstance(step, str):
            leases.lose_node(step)
            lost.add(step)
        elif isinstance(step, int):
            if out:
                leases.give_back(out.pop(step % len(out)))
        elif lease := leases.lease(step):
            assert len(lease.gpus) == step.gpus
            assert not set(lease.nodes) & lost
            on_each = {node: sum(gpu.node == node for gpu in lease.gpus) for node in lease.nodes}
            if step.gpus:
                assert set(on_each.values()) == {step.gpus // step.nodes}
                assert len(lease.nodes) == step.nodes
            held = [gpu.gpu_id for each in (*out, lease) for gpu in each.gpus]
            assert len(held) == len(set(held))
            out.append(lease)
            assert not leases.why_never(step)
    for lease in out:
        leases.give_back(lease)
    living = [size for number, size in enumerate(sizes) if f"node{number}" not in lost]
    assert len(leases.free_gpus) == sum(living)
    assert leases.num_cpu_free == len(living)


def test_a_unit_wider_than_a_node_never_fits() -> None:
    assert "a file stays on one node, and no node has more than 4" in table(4, 4).why_never(Need(8))
    assert table(4, 4).why_never(Need(8, nodes=2)) == ""
    assert "1 of 2 nodes have 3 of them" in table(4, 2).why_never(Need(6, nodes=2))
    assert "1 GPU" in table(4).why_never(Need(2, nodes=2)) or table(4).why_never(Need(2, nodes=2))


def test_cpu_slots_are_taken_where_most_are_free() -> None:
    leases = table(1, 1, cpu_units=2)
    taken = [leases.lease(Need()) for _ in range(5)]
    assert [lease.nodes for lease in taken if lease] == [("node0",), ("node1",), ("node0",), ("node1",)]
    for node in ("node0", "node1"):
        leases.lose_node(node)
    assert "every node of this run is lost" in leases.why_never(Need())


def test_the_marker_takes_nodes() -> None:
    wide = need_of_mark((16,), {"nodes": 2})
    assert Need.from_json(wide) == Need(16, nodes=2)
    assert Need.from_json(Need(16, nodes=2).to_json()) == Need(16, nodes=2)
    assert str(Need(16, nodes=2)) == "16 GPUs on 2 nodes"
    assert "nodes" not in need_of_mark((1,), {})
    assert Need.from_json(merge_needs([wide, need_of_mark((17,), {})])) == Need(34, nodes=2), "as many on each"
    assert Need(16, nodes=2).exceeds(Need(16))


@pytest.mark.parametrize("kwargs", [{"nodes": 0}, {"nodes": 3}, {"nodes": "2"}, {"nodes": True}])
def test_nodes_that_cannot_be_are_refused(kwargs: dict[str, object]) -> None:
    with pytest.raises(MarkError, match="nodes"):
        need_of_mark((16,), kwargs)
    with pytest.raises(MarkError, match="0 GPUs"):
        need_of_mark((0,), {"nodes": 2})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local:2x4", ClusterAddress(Boot.LOCAL, 2, 4, host="127.0.0.1")),
        ("listen:8", ClusterAddress(Boot.LISTEN, 8)),
        ("listen:8@7700", ClusterAddress(Boot.LISTEN, 8, port=7700)),
        ("listen:8@10.0.0.1:7700", ClusterAddress(Boot.LISTEN, 8, host="10.0.0.1", port=7700)),
        ("auto", ClusterAddress(Boot.RAY, ray_address="auto")),
        ("head:6379", ClusterAddress(Boot.RAY, ray_address="head:6379")),
    ],
)
def test_an_address_says_who_starts_the_agents(text: str, address: ClusterAddress) -> None:
    assert parse_cluster(text) == address


@pytest.mark.parametrize(
    "text", ["", "local", "local:0x4", "local:2x0", "local:2", "listen:0", "listen:2@99999", "local:2x4x8", "a"]
)
def test_an_address_of_no_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cluster"):
        parse_cluster(text)
