"""The plan of a run: on how many nodes its ranks are, checked node by node, and as a table. Pure.

Every rank has all roles of the models in one process. Ranks are spread equally over nodes, consecutive on each; which
of the nodes with room they are is Ray's choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.errors import InvalidValueError, PlacementError

UNITS = 10_000
"""Units of a CPU: Ray's precision."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks that are alike. Raises InvalidValueError."""

    num_ranks: int
    num_nodes: int | None = None
    """Number of nodes that share the ranks equally; None: as few as have room."""
    gpus: int = 1
    """Of each rank."""
    cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.num_nodes is not None and (self.num_nodes < 1 or self.num_ranks % self.num_nodes):
            raise InvalidValueError(
                f"{amount(self.num_ranks, 'rank')} on {self.num_nodes} nodes",
                legal=f"num_nodes {', '.join(map(str, self.divisors))}",
                remedy="leave num_nodes out: as few nodes as have room",
            )

    @property
    def divisors(self) -> list[int]:
        """Numbers of nodes that can share the ranks equally."""
        return [number for number in range(1, self.num_ranks + 1) if self.num_ranks % number == 0]

    def room(self, node: Node) -> int:
        """Return how many of the ranks a node has room for, by what it has in total."""
        pairs = ((node.num_gpus * UNITS, self.gpus * UNITS), (round(node.num_cpus * UNITS), round(self.cpus * UNITS)))
        return min((has // needs for has, needs in pairs if needs), default=self.num_ranks)

    def __str__(self) -> str:
        where = f" on {amount(self.num_nodes, 'node')}" if self.num_nodes else ""
        each = f"{amount(self.gpus, 'GPU')} and {amount(self.cpus, 'CPU')}"
        return f"{amount(self.num_ranks, 'rank')} of {each}{where}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranks on so many nodes, each of which has room for its share."""

    ranks: Ranks
    num_nodes: int
    roles: tuple[str, ...]
    """Of the process of each rank."""
    nodes: tuple[Node, ...]
    """All of the cluster, by name."""

    @property
    def share(self) -> int:
        """Ranks of a node."""
        return self.ranks.num_ranks // self.num_nodes

    def lines(self) -> list[str]:
        """Return the plan as a table of the nodes with room, below what runs there."""
        rows = [("node", "GPUs", "CPUs", "ranks that fit")]
        rows += [(n.name, f"{n.num_gpus:g}", f"{n.num_cpus:g}", f"{self.ranks.room(n)}") for n in self.nodes]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        where = "one node" if self.num_nodes == 1 else f"each of {self.num_nodes} nodes"
        return [
            f"{self.ranks}, {amount(self.share, 'rank')} on {where}; in the process of each: {', '.join(self.roles)}",
            *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        ]


def make_plan(ranks: Ranks, roles: Sequence[str], nodes: Sequence[Node]) -> Plan:
    """Return a plan that no node is too small for.

    Raises PlacementError, which quotes the inventory, if too few nodes have room for an equal share of the ranks.
    """
    ordered = tuple(sorted(nodes, key=lambda node: node.name))
    rooms = [ranks.room(node) for node in ordered]
    fitting = [n for n in ranks.divisors if sum(room >= ranks.num_ranks // n for room in rooms) >= n]
    wanted = [n for n in fitting if ranks.num_nodes in (None, n)]
    if wanted:
        return Plan(ranks, wanted[0], tuple(roles), ordered)
    remedy = "nodes that have what one rank needs; or smaller ranks"
    if fitting:
        share = amount(ranks.num_ranks // fitting[0], "rank")
        remedy = f"num_nodes={fitting[0]} fits, with {share} on {'it' if fitting[0] == 1 else 'each'}"
    elif total := sum(rooms):
        remedy = f"at most {amount(total, 'rank')} on these nodes, in equal shares; or more nodes"
    have = ", ".join(f"{node.name} {room}" for node, room in zip(ordered, rooms, strict=True)) or "no node"
    raise PlacementError(
        f"{ranks} do not fit; ranks that fit by node: {have}",
        legal=f"equal shares of at most what a node has: {'; '.join(map(str, ordered)) or 'no node'}",
        remedy=remedy,
    )


def amount(number: float, noun: str) -> str:
    """Return "1 GPU", "0.5 GPUs", "4 GPUs"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
