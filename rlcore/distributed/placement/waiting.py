"""What a reservation waits for: bundles, what their nodes have free, and who holds the rest. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlcore.distributed.placement.inventory import amount
from rlcore.distributed.placement.plan import Plan
from rlcore.distributed.placement.table import ranks_text


@dataclass(frozen=True, slots=True)
class Usage:
    """What a node has free, and who holds the rest."""

    free_gpus: float
    free_cpus: float
    holders: tuple[str, ...] = ()


def departed(plan: Plan, usages: Mapping[str, Usage]) -> list[str]:
    """Return the nodes with slots that are not in the cluster any more; `usages` are by node id."""
    used = {slot.node for slot in plan.slots}
    return [node.name for node in plan.nodes if node.name in used and node.node_id not in usages]


def waiting_text(plan: Plan, pool_name: str, usages: Mapping[str, Usage]) -> str:
    """Return what a pool waits for, node by node; nodes with enough are left out unless all have."""
    (pool,) = (each for each in plan.pools if each.name == pool_name)
    lines = []
    for node in plan.nodes:
        slots = [slot for slot in plan.slots_of(pool_name) if slot.node == node.name]
        usage = usages.get(node.node_id, Usage(0, 0))
        gpus, cpus = len(slots) * pool.gpus_per_slot, len(slots) * pool.cpus_per_slot
        if slots and (usage.free_gpus < gpus or usage.free_cpus < cpus):
            free = (
                f"{usage.free_gpus:g} of {node.num_gpus:g} GPUs and {usage.free_cpus:g} of {node.num_cpus:g} CPUs free"
            )
            held = f"; held by {', '.join(usage.holders)}" if usage.holders else ""
            needs = f"{amount(gpus, 'GPU')} and {amount(cpus, 'CPU')}"
            lines.append(f"bundles {ranks_text(slots)} need {needs} on {node.name}, which has {free}{held}")
    return f"pool {pool_name}: " + ("; ".join(lines) or "its nodes have room, and Ray has not assigned the bundles yet")
