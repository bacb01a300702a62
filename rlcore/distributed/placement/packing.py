"""Slots on nodes: each node is checked once, the same for the same nodes whatever their order. Pure."""

from collections.abc import Sequence
from typing import NamedTuple


class Free(NamedTuple):
    """Free resources of a node, in ten-thousandths, the precision that Ray has."""

    gpus: int
    cpus: int


class Request(NamedTuple):
    """Slots that are alike."""

    num_slots: int
    num_nodes: int | None
    """Number of nodes that share the slots equally; None: any nodes."""
    slot: Free
    """Resources of one slot."""


def pack(requests: Sequence[Request], nodes: Sequence[Free]) -> tuple[tuple[int, ...], ...] | None:
    """Return for each request how many slots each node gets; None if one finds no room beside those before it.

    Requests that ask for most on one node come first.
    """
    free, found = list(nodes), {}
    for index in sorted(range(len(requests)), key=lambda index: _difficulty(requests[index]), reverse=True):
        slot = requests[index].slot
        counts = _spread(requests[index], free)
        if counts is None:
            return None
        free = [Free(has.gpus - n * slot.gpus, has.cpus - n * slot.cpus) for has, n in zip(free, counts, strict=True)]
        found[index] = counts
    return tuple(found[index] for index in range(len(requests)))


def room(slot: Free, free: Free) -> int:
    """Return how many slots fit into what a node has free."""
    return min(has // needs for needs, has in zip(slot, free, strict=True) if needs)


def _difficulty(request: Request) -> tuple[int, ...]:
    slots_of_node = request.num_slots // request.num_nodes if request.num_nodes else 1
    return (slots_of_node * request.slot.gpus, slots_of_node * request.slot.cpus, request.num_slots)


def _spread(request: Request, nodes: Sequence[Free]) -> tuple[int, ...] | None:
    """Return numbers of slots by node; None without room.

    A request for any nodes fills the fewest nodes, and without GPUs the nodes with the fewest of them. A request for so
    many nodes takes those with the least room.
    """
    rooms = [room(request.slot, free) for free in nodes]
    if request.num_nodes:
        share = request.num_slots // request.num_nodes
        rooms = [share if has >= share else 0 for has in rooms]

    def preference(index: int) -> tuple[int, int, Free]:
        spared_gpus = 0 if request.slot.gpus else nodes[index].gpus
        return (spared_gpus, 0 if request.num_nodes else -rooms[index], nodes[index])

    counts, left = [0] * len(nodes), request.num_slots
    for index in sorted(range(len(nodes)), key=preference):
        counts[index] = min(rooms[index], left)
        left -= counts[index]
    return None if left else tuple(counts)
