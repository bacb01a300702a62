"""The GPUs of all nodes of a cluster, and what reads them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.core.clock import SystemClock
from harness.core.errors import InventoryError
from harness.machine.gpu_watch import GpuWatch, Reading
from harness.machine.inventory import Gpu, Inventory, LeftOut
from harness.machine.meter import NoMeter
from harness.runner.cluster.nodes import Cluster, Node


def gpus_of(nodes: Iterable[Node]) -> tuple[Gpu, ...]:
    """Return the GPUs of nodes, numbered through."""
    found = [replace(gpu, node=node.name) for node in nodes for gpu in node.hello.gpus]
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(found))


def inventory_of(cluster: Cluster) -> Inventory:
    """Return the inventory of all nodes. InventoryError where two nodes have the same GPU."""
    left_out: list[LeftOut] = []
    num_links: dict[frozenset[str], int] = {}
    known: dict[str, str] = {}
    gpus = gpus_of(cluster.nodes.values())
    for gpu in gpus:
        if other := known.get(gpu.gpu_id):
            raise InventoryError(
                f"{other} and {gpu.node} have the same GPU {gpu.gpu_id}",
                legal="one agent for each GPU",
                remedy="start one agent on each machine, or give each its GPUs with CUDA_VISIBLE_DEVICES",
            )
        known[gpu.gpu_id] = gpu.node
    for node in cluster.nodes.values():
        left_out += node.hello.left_out
        num_links |= {frozenset((link.first, link.second)): link.count for link in node.hello.links}
    notes = [f"{node.name}: {note}" for node in cluster.nodes.values() for note in node.hello.notes]
    return Inventory(gpus, tuple(left_out), num_links, note="; ".join(notes))


def descriptions(cluster: Cluster) -> tuple[str, ...]:
    """Return a line for each node: name, host and GPUs."""
    return tuple(
        f"{node.name} {node.hello.host} ({node.hello.address}), {Inventory(node.hello.gpus).describe()}"
        for node in cluster.nodes.values()
    )


def watch_of(cluster: Cluster) -> GpuWatch:
    """Return what asks the nodes about their GPUs; simulated ones are always as they were."""
    if all(node.hello.is_simulated for node in cluster.nodes.values()):
        return GpuWatch(NoMeter(), SystemClock())
    node_of = {gpu.gpu_id: gpu.node for gpu in gpus_of(cluster.nodes.values())}
    return _NodesWatch(NoMeter(), SystemClock(), cluster=cluster, node_of=node_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodesWatch(GpuWatch):
    """Asks the nodes about their GPUs."""

    cluster: Cluster
    node_of: dict[str, str]

    async def reading(self, gpu_id: str, *, finds_faults: bool) -> Reading | None:
        answer = await self.cluster.read_gpu(gpu_id, self.node_of[gpu_id], finds_faults=finds_faults)
        return Reading(answer.used_bytes, answer.processes, answer.fault) if answer is not None else None
