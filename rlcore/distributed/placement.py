"""The plan of a run: on how many nodes its ranks are, checked node by node, and as a table. Pure.

Every rank has all roles of the models in one process. Ranks are spread equally over nodes, consecutive on each; which
of the nodes with room they are is Ray's choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.config import DeploymentSection
from rlcore.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a node of a cluster."""

    name: str
    """Unique in an inventory."""
    num_gpus: int
    num_cpus: float
    node_id: str = ""
    """Ray's id."""

    def __str__(self) -> str:
        return f"{self.name}: {amount(self.num_gpus, 'GPU')}, {amount(self.num_cpus, 'CPU')}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranks on so many nodes, each of which has room for its share."""

    section: DeploymentSection
    num_nodes: int
    roles: tuple[str, ...]
    """Of the process of each rank."""
    nodes: tuple[Node, ...]
    """All of the cluster."""

    @property
    def share(self) -> int:
        """Ranks of a node."""
        return self.section.num_ranks // self.num_nodes

    def lines(self) -> list[str]:
        """Return the plan as a table of the nodes with room, below what runs there."""
        rows = [("node", "GPUs", "CPUs", "ranks that fit")]
        rows += [(n.name, f"{n.num_gpus:g}", f"{n.num_cpus:g}", f"{room(n, self.section)}") for n in self.nodes]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        where = "one node" if self.num_nodes == 1 else f"each of {self.num_nodes} nodes"
        ranks = f"{describe(self.section)}, {amount(self.share, 'rank')} on {where}"
        return [
            f"{ranks}; in the process of each: {', '.join(self.roles)}",
            *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        ]


def make_plan(section: DeploymentSection, roles: Sequence[str], nodes: Sequence[Node]) -> Plan:
    """Return a plan that no node is too small for, over `num_nodes` nodes, or as few as have room.

    Raises PlacementError, which quotes the inventory, if too few nodes have room for an equal share of the ranks.
    """
    rooms, num_ranks = [room(node, section) for node in nodes], section.num_ranks
    divisors = [number for number in range(1, num_ranks + 1) if num_ranks % number == 0]
    fitting = [number for number in divisors if sum(room >= num_ranks // number for room in rooms) >= number]
    for number in fitting:
        if section.num_nodes in (None, number):
            return Plan(section, number, tuple(roles), tuple(nodes))
    have = [f"{node}, room for {amount(room, 'rank')}" for node, room in zip(nodes, rooms, strict=True)]
    raise PlacementError(
        f"{describe(section)} do not fit",
        legal=f"equal shares of at most what a node has: {'; '.join(have) or 'no node'}",
        remedy=f"num_nodes={fitting[0]} fits" if fitting else "fewer or smaller ranks, or more or larger nodes",
    )


def room(node: Node, section: DeploymentSection) -> int:
    """Return how many ranks a node has room for, by what it has in total."""
    pairs = ((node.num_gpus, section.gpus_per_rank), (node.num_cpus, section.cpus_per_rank))
    return min(int(has / needs + 1e-6) for has, needs in pairs if needs)  # 0.3 CPUs have room for 3 ranks of 0.1


def describe(section: DeploymentSection) -> str:
    """Return "2 ranks of 1 GPU and 1 CPU on 2 nodes"."""
    where = f" on {amount(section.num_nodes, 'node')}" if section.num_nodes else ""
    each = f"{amount(section.gpus_per_rank, 'GPU')} and {amount(section.cpus_per_rank, 'CPU')}"
    return f"{amount(section.num_ranks, 'rank')} of {each}{where}"


def amount(number: float, noun: str) -> str:
    """Return "1 GPU", "0.5 GPUs", "4 GPUs"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
