"""Plans: each node is checked by itself, by what it has; a plan is a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.distributed.placement import Node, Ranks, make_plan
from rlcore.errors import InvalidValueError, PlacementError

TWO = (Node("b", 4, 16), Node("a", 4, 16))


def test_two_nodes_of_four_do_not_pass_for_one_of_eight() -> None:
    with pytest.raises(PlacementError) as refused:
        make_plan(Ranks(num_ranks=8, num_nodes=1), ["policy"], TWO)
    assert refused.value.what == ("8 ranks of 1 GPU and 1 CPU on 1 node do not fit; ranks that fit by node: a 4, b 4")
    assert "a: 4 GPUs, 16 CPUs; b: 4 GPUs, 16 CPUs" in refused.value.legal
    assert refused.value.remedy == "num_nodes=2 fits, with 4 ranks on each"


def test_a_plan_takes_the_fewest_nodes_and_prints_them() -> None:
    assert make_plan(Ranks(num_ranks=4), ["policy"], TWO).num_nodes == 1
    plan = make_plan(Ranks(num_ranks=8), ["policy", "critic"], TWO)
    assert plan.lines() == [
        "8 ranks of 1 GPU and 1 CPU, 4 ranks on each of 2 nodes; in the process of each: policy, critic",
        "node  GPUs  CPUs  ranks that fit",
        "a     4     16    4",
        "b     4     16    4",
    ]


def test_cpus_are_checked_as_gpus_are_in_rays_precision() -> None:
    assert make_plan(Ranks(num_ranks=160, gpus=0, cpus=0.1), ["policy"], TWO).num_nodes == 1
    with pytest.raises(PlacementError, match=r"2 ranks of 1 GPU and 9 CPUs on 1 node do not fit"):
        make_plan(Ranks(num_ranks=2, num_nodes=1, cpus=9), ["policy"], TWO)
    with pytest.raises(PlacementError, match="a 0, b 0") as refused:
        make_plan(Ranks(num_ranks=2, gpus=99), ["policy"], TWO)
    assert "smaller ranks" in refused.value.remedy
    with pytest.raises(PlacementError, match="no node"):
        make_plan(Ranks(num_ranks=1), ["policy"], ())


@pytest.mark.parametrize("num_nodes", [0, 4])
def test_nodes_share_the_ranks_equally(num_nodes: int) -> None:
    with pytest.raises(InvalidValueError, match=f"6 ranks on {num_nodes} nodes") as refused:
        Ranks(num_ranks=6, num_nodes=num_nodes)
    assert refused.value.legal == "num_nodes 1, 2, 3, 6"


@given(st.integers(1, 16), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=5))
def test_every_plan_fits(num_ranks: int, sizes: list[tuple[int, int]]) -> None:
    nodes = [Node(f"n{at}", gpus, cpus) for at, (gpus, cpus) in enumerate(sizes)]
    try:
        plan = make_plan(Ranks(num_ranks=num_ranks), ["policy"], nodes)
    except PlacementError:
        for number in range(1, num_ranks + 1):
            fits = sum(min(gpus, cpus) >= num_ranks // number for gpus, cpus in sizes) >= number
            assert num_ranks % number or not fits
        return
    assert plan.share * plan.num_nodes == num_ranks
    assert sum(min(gpus, cpus) >= plan.share for gpus, cpus in sizes) >= plan.num_nodes
