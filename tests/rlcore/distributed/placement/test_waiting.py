"""What a reservation waits for, from what nodes have free."""

from rlcore.distributed.placement.inventory import Node
from rlcore.distributed.placement.plan import Plan, Pool, Role, make_plan
from rlcore.distributed.placement.waiting import Usage, departed, waiting_text


def plan() -> Plan:
    nodes = [Node("a", 4, 8, "id-a"), Node("b", 4, 8, "id-b"), Node("c", 0, 1, "id-c")]
    pool = Pool(name="train", num_slots=6, num_nodes=2, cpus_per_slot=2)
    return make_plan([pool], [Role(name="actor", pool="train")], nodes)


def test_bundles_nodes_and_holders_are_named() -> None:
    found = {"id-a": Usage(4, 8), "id-b": Usage(1, 8, ("placement group 'x' (3 GPUs, 0 CPUs)", "actor A (pid 7)"))}
    assert waiting_text(plan(), "train", found) == (
        "pool train: bundles 3-5 need 3 GPUs and 6 CPUs on b, which has 1 of 4 GPUs and 8 of 8 CPUs free;"
        " held by placement group 'x' (3 GPUs, 0 CPUs), actor A (pid 7)"
    )
    found = {"id-a": Usage(4, 5), "id-b": Usage(3, 6)}
    assert waiting_text(plan(), "train", found) == (
        "pool train: bundles 0-2 need 3 GPUs and 6 CPUs on a, which has 4 of 4 GPUs and 5 of 8 CPUs free"
    )


def test_nodes_with_room_are_not_blamed() -> None:
    found = {"id-a": Usage(4, 8), "id-b": Usage(3, 6)}
    assert "Ray has not assigned the bundles yet" in waiting_text(plan(), "train", found)


def test_a_node_that_left_is_found_if_the_plan_uses_it() -> None:
    assert departed(plan(), {"id-a": Usage(4, 8)}) == ["b"]
    assert departed(plan(), {"id-a": Usage(4, 8), "id-b": Usage(4, 8)}) == [], "c has no slot"
