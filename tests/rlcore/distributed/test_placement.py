"""Plans: each node is checked by itself, by what it has; a plan is a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.config import DeploymentSection
from rlcore.distributed.placement import Node, make_plan
from rlcore.errors import PlacementError

TWO = (Node("a", 4, 16), Node("b", 4, 16))


def ranks(num_ranks: int, *, num_nodes: int | None = None, gpus: int = 1, cpus: float = 1.0) -> DeploymentSection:
    return DeploymentSection(num_ranks=num_ranks, num_nodes=num_nodes, gpus_per_rank=gpus, cpus_per_rank=cpus)


def test_two_nodes_of_four_do_not_pass_for_one_of_eight() -> None:
    with pytest.raises(PlacementError) as refused:
        make_plan(ranks(8, num_nodes=1), ["policy"], TWO)
    assert refused.value.what == "8 ranks of 1 GPU and 1 CPU on 1 node do not fit"
    assert "a: 4 GPUs, 16 CPUs, room for 4 ranks; b: 4 GPUs, 16 CPUs, room for 4 ranks" in refused.value.legal
    assert refused.value.remedy == "num_nodes=2 fits"


def test_a_plan_takes_the_fewest_nodes_and_prints_them() -> None:
    assert make_plan(ranks(4), ["policy"], TWO).num_nodes == 1
    plan = make_plan(ranks(8), ["policy", "critic"], TWO)
    assert plan.lines() == [
        "8 ranks of 1 GPU and 1 CPU, 4 ranks on each of 2 nodes; in the process of each: policy, critic",
        "node  GPUs  CPUs  ranks that fit",
        "a     4     16    4",
        "b     4     16    4",
    ]


def test_cpus_are_checked_as_gpus_are_in_rays_precision() -> None:
    assert make_plan(ranks(160, gpus=0, cpus=0.1), ["policy"], TWO).num_nodes == 1
    with pytest.raises(PlacementError, match=r"2 ranks of 1 GPU and 9 CPUs on 1 node do not fit"):
        make_plan(ranks(2, num_nodes=1, cpus=9), ["policy"], TWO)
    with pytest.raises(PlacementError, match="16 CPUs, room for 0 ranks; b") as refused:
        make_plan(ranks(2, gpus=99), ["policy"], TWO)
    assert "smaller ranks" in refused.value.remedy
    with pytest.raises(PlacementError, match="no node"):
        make_plan(ranks(1), ["policy"], ())


def test_nodes_share_the_ranks_equally() -> None:
    with pytest.raises(PlacementError, match="6 ranks of 1 GPU and 1 CPU on 4 nodes do not fit") as refused:
        make_plan(ranks(6, num_nodes=4), ["policy"], TWO * 2)
    assert refused.value.remedy == "num_nodes=2 fits"


@given(st.integers(1, 16), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=5))
def test_every_plan_fits(num_ranks: int, sizes: list[tuple[int, int]]) -> None:
    nodes = [Node(f"n{at}", gpus, cpus) for at, (gpus, cpus) in enumerate(sizes)]
    try:
        plan = make_plan(ranks(num_ranks), ["policy"], nodes)
    except PlacementError:
        for number in range(1, num_ranks + 1):
            fits = sum(min(gpus, cpus) >= num_ranks // number for gpus, cpus in sizes) >= number
            assert num_ranks % number or not fits
        return
    assert plan.share * plan.num_nodes == num_ranks
    assert sum(min(gpus, cpus) >= plan.share for gpus, cpus in sizes) >= plan.num_nodes
