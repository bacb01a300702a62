"""Plans: no node gets more than it has, every role has one process, and a plan that exists is found."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.distributed.placement.inventory import Node
from rlcore.distributed.placement.plan import Plan, Pool, Role, make_plan
from rlcore.distributed.placement.table import render
from rlcore.errors import InvalidValueError, PlacementError

TWO_OF_FOUR = (Node("a", 4, 8), Node("b", 4, 8))


def one_role(*pools: Pool) -> list[Role]:
    return [Role(name=f"role-{pool.name}", pool=pool.name) for pool in pools]


def plan_of(nodes: Sequence[Node], *pools: Pool) -> Plan:
    return make_plan(pools, one_role(*pools), nodes)


# ------------------------------------------------------------------------------------------------------- what is legal


def test_two_nodes_of_four_gpus_refuse_a_pool_of_eight_on_one_node_and_quote_the_inventory() -> None:
    with pytest.raises(PlacementError) as caught:
        plan_of(TWO_OF_FOUR, Pool(name="train", num_slots=8, num_nodes=1))
    assert "pool train: 8 slots of 1 GPU and 1 CPU on 1 node" in caught.value.what
    assert "a: 4 GPUs, 8 CPUs; b: 4 GPUs, 8 CPUs" in caught.value.legal
    assert caught.value.remedy == "num_nodes=2 fits, with 4 slots on each"
    nodes = [slot.node for slot in plan_of(TWO_OF_FOUR, Pool(name="train", num_slots=8, num_nodes=2)).slots]
    assert nodes == ["a"] * 4 + ["b"] * 4


def test_cpus_are_checked_by_node_too() -> None:
    with pytest.raises(PlacementError, match="a 1, b 1"):
        plan_of(TWO_OF_FOUR, Pool(name="train", num_slots=3, cpus_per_slot=5))


def test_pools_that_fit_alone_and_not_together_are_refused() -> None:
    pools = Pool(name="x", num_slots=3, num_nodes=1), Pool(name="y", num_slots=4, num_nodes=2)
    with pytest.raises(PlacementError, match="not together"):
        plan_of(TWO_OF_FOUR, *pools)


def test_a_plan_does_not_depend_on_the_order_of_nodes() -> None:
    pools = Pool(name="x", num_slots=3), Pool(name="y", num_slots=4, num_nodes=1)
    assert plan_of(TWO_OF_FOUR, *pools) == plan_of(TWO_OF_FOUR[::-1], *pools)


def test_slots_without_gpus_spare_the_nodes_that_have_them() -> None:
    nodes = Node("a", 4, 8), Node("head", 0, 2)
    plan = plan_of(nodes, Pool(name="rewards", num_slots=2, gpus_per_slot=0))
    assert [slot.node for slot in plan.slots] == ["head", "head"]


def test_roles_share_a_process_by_name() -> None:
    pool = Pool(name="train", num_slots=2, cpus_per_slot=2)
    roles = [Role(name=name, pool="train", process="trainer") for name in ("actor", "reference")]
    plan = make_plan([pool], roles, TWO_OF_FOUR)
    (process,) = plan.processes
    assert (process.name, process.roles, process.gpus, process.cpus) == ("trainer", ("actor", "reference"), 1, 2)


def test_processes_share_the_gpu_of_a_slot_only_if_each_declares_its_share() -> None:
    pool = Pool(name="train", num_slots=2, cpus_per_slot=1)
    roles = [Role(name="actor", pool="train", gpus=0.5), Role(name="rollout", pool="train")]
    with pytest.raises(InvalidValueError, match="gpus of rollout is not declared"):
        make_plan([pool], roles, TWO_OF_FOUR)
    roles[1] = Role(name="rollout", pool="train", gpus=0.5)
    assert [(each.gpus, each.cpus) for each in make_plan([pool], roles, TWO_OF_FOUR).processes] == [(0.5, 0.5)] * 2


@pytest.mark.parametrize("gpus", [(1, 1), (0.6, 0.6), (0.5, 1), (2, 0)])
def test_shares_that_exceed_a_slot_are_refused(gpus: tuple[float, float]) -> None:
    roles = [Role(name=f"r{at}", pool="train", gpus=share) for at, share in enumerate(gpus)]
    with pytest.raises(InvalidValueError, match="gpus in a slot: r0"):
        make_plan([Pool(name="train", num_slots=1)], roles, TWO_OF_FOUR)


@pytest.mark.parametrize(
    ("pools", "roles", "what"),
    [
        ([Pool(name="train", num_slots=1)], [Role(name="actor", pool="trian")], "role actor: no pool 'trian'"),
        ([Pool(name="train", num_slots=1)], [], "no role"),
        ([Pool(name="train", num_slots=1)] * 2, [Role(name="actor", pool="train")], "pool 'train' is there 2 times"),
        (
            [Pool(name="train", num_slots=1)],
            [Role(name="actor", pool="train"), Role(name="actor", pool="train")],
            "role 'actor' is there 2 times",
        ),
        (
            [Pool(name="x", num_slots=1), Pool(name="y", num_slots=1)],
            [Role(name="a", pool="x", process="p"), Role(name="b", pool="y", process="p")],
            "process p is in several pools: a in x, b in y",
        ),
        (
            [Pool(name="x", num_slots=1), Pool(name="y", num_slots=1)],
            [Role(name="a", pool="x")],
            "pool y has no role",
        ),
        (
            [Pool(name="x", num_slots=1)],
            [Role(name="a", pool="x", process="p", gpus=1), Role(name="b", pool="x", process="p", gpus=0.5)],
            "process p: its roles declare different gpus: a 1, b 0.5",
        ),
        ([Pool(name="x", num_slots=1)], [Role(name="a", pool="x", gpus=1.5)], "role a: gpus 1.5"),
        ([Pool(name="x", num_slots=1)], [Role(name="a", pool="x", cpus=2)], "cpus in a slot: a 2"),
    ],
)
def test_contradictions_are_refused(pools: list[Pool], roles: list[Role], what: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make_plan(pools, roles, TWO_OF_FOUR)
    assert what in caught.value.what


def test_the_nearest_name_is_named() -> None:
    pools = [Pool(name="serve", num_slots=1), Pool(name="train", num_slots=1)]
    with pytest.raises(InvalidValueError) as caught:
        make_plan(pools, [Role(name="actor", pool="trian")], TWO_OF_FOUR)
    assert (caught.value.legal, caught.value.remedy) == ("serve, train", "did you mean 'train'?")
    plan = plan_of(TWO_OF_FOUR, *pools)
    with pytest.raises(InvalidValueError, match="no pool 'x'"):
        plan.slots_of("x")


@pytest.mark.parametrize(
    "values",
    [
        {"num_slots": 0},
        {"num_slots": 3, "num_nodes": 2},
        {"num_slots": 3, "num_nodes": 0},
        {"num_slots": 1, "gpus_per_slot": 0.5},
        {"num_slots": 1, "gpus_per_slot": -1},
        {"num_slots": 1, "gpus_per_slot": 0, "cpus_per_slot": 0},
    ],
)
def test_pools_that_cannot_be_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError):
        Pool(name="train", **values)


# ----------------------------------------------------------------------------------------------------------- the table


def test_a_plan_is_printed_by_node() -> None:
    pools = Pool(name="train", num_slots=6, cpus_per_slot=2), Pool(name="serve", num_slots=1, gpus_per_slot=2)
    roles = [
        Role(name="actor", pool="train", process="trainer"),
        Role(name="reference", pool="train", process="trainer"),
        Role(name="rollout", pool="serve"),
    ]
    plan = make_plan(pools, roles, [*TWO_OF_FOUR, Node("head", 0, 2)])
    assert render(plan) == [
        "node  GPUs    CPUs    pool   ranks  processes in each slot",
        "a     4 of 4  5 of 8  train  0-1    trainer (actor, reference), 1 GPU, 2 CPUs",
        "                      serve  0      rollout, 2 GPUs, 1 CPU",
        "b     4 of 4  8 of 8  train  2-5    trainer (actor, reference), 1 GPU, 2 CPUs",
        "head  0 of 0  0 of 2  -      -      -",
    ]


# ------------------------------------------------------------------------------------------------------------ the room

NODES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=3)


@st.composite
def pools(draw: st.DrawFn) -> list[Pool]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        num_nodes = draw(st.none() | st.integers(1, 2))
        share = draw(st.integers(1, 3))
        gpus = draw(st.integers(0, 2))
        cpus = draw(st.integers(0 if gpus else 1, 2))
        slots = share * (num_nodes or 1)
        found.append(
            Pool(name=f"p{number}", num_slots=slots, num_nodes=num_nodes, gpus_per_slot=gpus, cpus_per_slot=cpus)
        )
    return found


def assignments(pool: Pool, num_nodes: int) -> list[tuple[int, ...]]:
    """Return every spread of a pool, without regard to what nodes have."""
    share = pool.num_slots // pool.num_nodes if pool.num_nodes else None
    legal = range(pool.num_slots + 1) if share is None else (0, share)
    return [c for c in itertools.product(legal, repeat=num_nodes) if sum(c) == pool.num_slots]


def exists(pool: Pool, nodes: Sequence[Node]) -> bool:
    """Whether any spread of a pool fits, by trying all of them."""
    return any(
        all(
            pool.gpus_per_slot * count <= node.num_gpus and pool.cpus_per_slot * count <= node.num_cpus
            for count, node in zip(counts, nodes, strict=True)
        )
        for counts in assignments(pool, len(nodes))
    )


@given(pools(), NODES)
def test_a_pool_that_has_room_is_placed_and_no_node_gets_more_than_it_has(
    wanted: list[Pool], sizes: list[tuple[int, int]]
) -> None:
    nodes = [Node(f"n{at}", *size) for at, size in enumerate(sizes)]
    refusal: PlacementError | None = None
    try:
        plan = plan_of(nodes, *wanted)
    except PlacementError as error:
        refusal = error
    if refusal is not None:
        assert all(str(node) in refusal.legal for node in nodes)
        assert len(wanted) > 1 or not exists(wanted[0], nodes)
        return
    by_name = {pool.name: pool for pool in wanted}
    for node in nodes:
        here = [by_name[slot.pool] for slot in plan.slots if slot.node == node.name]
        assert sum(pool.gpus_per_slot for pool in here) <= node.num_gpus
        assert sum(pool.cpus_per_slot for pool in here) <= node.num_cpus
    for pool in wanted:
        slots = plan.slots_of(pool.name)
        assert [slot.rank for slot in slots] == list(range(pool.num_slots))
        by_node = [list(group) for _, group in itertools.groupby(slots, lambda slot: slot.node)]
        assert [[slot.local_rank for slot in group] for group in by_node] == [[*range(len(g))] for g in by_node]
        if pool.num_nodes:
            assert [len(group) for group in by_node] == [pool.num_slots // pool.num_nodes] * pool.num_nodes
    placed = [role for process in plan.processes for role in process.roles]
    assert sorted(placed) == sorted(f"role-{pool.name}" for pool in wanted)


def test_a_cluster_of_sixty_four_nodes_is_planned() -> None:
    nodes = [Node(f"n{at:02}", 8, 64) for at in range(64)]
    plan = plan_of(nodes, Pool(name="train", num_slots=256, num_nodes=32), Pool(name="serve", num_slots=256))
    assert len({slot.node for slot in plan.slots}) == 64
