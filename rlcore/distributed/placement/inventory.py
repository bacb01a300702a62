"""Nodes and what each of them has."""

from collections.abc import Iterable
from dataclasses import dataclass


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


def inventory_text(nodes: Iterable[Node]) -> str:
    """Return the nodes in one line."""
    return "; ".join(map(str, nodes)) or "no node"


def amount(number: float, noun: str) -> str:
    """Return "1 GPU", "0.5 GPUs", "4 GPUs"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
