"""Nodes of a Ray cluster: what each has, what each has free, and who holds the rest. The driver has joined it."""

from collections import Counter
from typing import Any

from rlcore.distributed.placement.inventory import Node, amount
from rlcore.distributed.placement.waiting import Usage
from rlcore.errors import PlacementError


def ray_nodes() -> tuple[Node, ...]:
    """Return the nodes that are alive, by name; equal names are followed by the first digits of the id."""
    found = alive_nodes()
    counts = Counter(node["NodeName"] for node in found.values())
    nodes = []
    for node_id, node in found.items():
        name = node["NodeName"] if counts[node["NodeName"]] == 1 else f"{node['NodeName']}/{node_id[:8]}"
        resources = node["Resources"]
        nodes.append(Node(name, int(resources.get("GPU", 0)), float(resources.get("CPU", 0)), node_id))
    return tuple(sorted(nodes, key=lambda node: node.name))


def alive_nodes() -> dict[str, Any]:
    """Return Ray's entries of live nodes by id. Raises PlacementError if this process has not joined a cluster."""
    import ray

    if not ray.is_initialized():
        raise PlacementError("this process has not joined a Ray cluster", remedy="ray.init() first")
    cluster: Any = ray
    return {node["NodeID"]: node for node in cluster.nodes() if node["Alive"]}


def usages() -> dict[str, Usage]:
    """Return what each live node has free, and the placement groups and actors that hold the rest, by node id."""
    from ray._private import state  # what it answers is public only through a dashboard, which a cluster may not have
    from ray.util.placement_group import placement_group_table

    books: Any = state
    free, groups = books.available_resources_per_node(), placement_group_table()
    living = [actor for actor in books.actors().values() if actor["State"] == "ALIVE"]
    return {
        node_id: Usage(
            free.get(node_id, {}).get("GPU", 0.0),
            free.get(node_id, {}).get("CPU", 0.0),
            (*_groups_on(node_id, groups), *_actors_on(node_id, living)),
        )
        for node_id in alive_nodes()
    }


def _groups_on(node_id: str, groups: dict[str, Any]) -> list[str]:
    """Return placement groups with bundles on a node, and what they hold there."""
    found = []
    for group_id, group in groups.items():
        bundles = [b for at, b in group["bundles"].items() if group["bundles_to_node_id"].get(at) == node_id]
        if bundles and group["state"] in ("CREATED", "PREPARED", "RESCHEDULING"):
            gpus, cpus = (sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("GPU", "CPU"))
            name = group["name"] or group_id[:8]
            found.append(f"placement group {name!r} ({amount(gpus, 'GPU')}, {amount(cpus, 'CPU')})")
    return found


def _actors_on(node_id: str, actors: list[dict[str, Any]]) -> list[str]:
    here = [actor for actor in actors if actor["Address"]["NodeID"] == node_id]
    return [f"actor {actor['Name'] or actor['ActorClassName']} (pid {actor['Pid']})" for actor in here]
