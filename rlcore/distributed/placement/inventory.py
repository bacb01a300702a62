"""Nodes and what each of them has: this machine, without Ray."""

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a node of a cluster."""

    name: str
    """Unique in an inventory."""
    num_gpus: int
    num_cpus: float
    node_id: str = ""
    """Ray's id; empty without Ray."""

    def __str__(self) -> str:
        return f"{self.name}: {amount(self.num_gpus, 'GPU')}, {amount(self.num_cpus, 'CPU')}"


def this_machine() -> tuple[Node, ...]:
    """Return this machine as the only node: the GPUs that torch sees, the CPUs that this process may use.

    They are counted by NVML, which initialises nothing; `torch.cuda.is_available()` would break a later fork.
    """
    return (Node(platform.node() or "localhost", torch.cuda.device_count(), len(os.sched_getaffinity(0))),)


def inventory_text(nodes: Iterable[Node]) -> str:
    """Return the nodes in one line."""
    return "; ".join(map(str, nodes)) or "no node"


def amount(number: float, noun: str) -> str:
    """Return "1 GPU", "0.5 GPUs", "4 GPUs"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
