"""The search for slots on nodes: exact, and the same for the same nodes whatever their order. Pure.

Slots of one request are alike. Nodes with equal free resources are interchangeable, so a state of the search is the
sorted list of what the nodes have free, and a state without a solution is visited once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_STATES = 50_000
"""States after which the search gives up."""


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


class SearchLimit(Exception):
    """The search visited `MAX_STATES` states and found neither a solution nor that there is none."""


def pack(requests: Sequence[Request], nodes: Sequence[Free]) -> tuple[tuple[int, ...], ...] | None:
    """Return for each request how many slots each node gets; None if the nodes do not have room for all of them.

    Raises SearchLimit.
    """
    order = sorted(range(len(requests)), key=lambda index: _difficulty(requests[index]), reverse=True)
    found = _Search([requests[index] for index in order]).solve(0, tuple(nodes))
    if found is None:
        return None
    return tuple(found[order.index(index)] for index in range(len(requests)))


def room(slot: Free, free: Free) -> int:
    """Return how many slots fit into what a node has free."""
    return min(has // needs for needs, has in zip(slot, free, strict=True) if needs)


def _difficulty(request: Request) -> tuple[int, ...]:
    """Requests that ask for most on one node come first."""
    slots_of_node = request.num_slots // request.num_nodes if request.num_nodes else 1
    return (slots_of_node * request.slot.gpus, slots_of_node * request.slot.cpus, request.num_slots)


@dataclass
class _Search:
    requests: Sequence[Request]
    failed: set[tuple[int, tuple[Free, ...]]] = field(default_factory=set)
    """States without a solution: the next request, and what the nodes have free."""
    num_states: int = 0

    def solve(self, at: int, nodes: tuple[Free, ...]) -> tuple[tuple[int, ...], ...] | None:
        if at == len(self.requests):
            return ()
        state = (at, tuple(sorted(nodes)))
        if state in self.failed:
            return None
        request = self.requests[at]
        for counts in spreads(request, nodes):
            self.num_states += 1
            if self.num_states > MAX_STATES:
                raise SearchLimit
            rest = self.solve(at + 1, tuple(_less(*each, request.slot) for each in zip(nodes, counts, strict=True)))
            if rest is not None:
                return counts, *rest
        self.failed.add(state)
        return None


def spreads(request: Request, nodes: Sequence[Free]) -> Iterator[tuple[int, ...]]:
    """Yield numbers of slots by node, one for each set of spreads that differ in which of two equal nodes has more.

    A request for any nodes fills the fewest nodes first, and without GPUs the nodes with the fewest of them. A request
    for so many nodes takes those with the least room first.
    """
    rooms = [room(request.slot, free) for free in nodes]
    if request.num_nodes:
        share = request.num_slots // request.num_nodes
        rooms = [share if has >= share else 0 for has in rooms]
    is_fixed = request.num_nodes is not None

    def preference(index: int) -> tuple[int, int, Free]:
        spared_gpus = 0 if request.slot.gpus else nodes[index].gpus
        return (spared_gpus, 0 if is_fixed else -rooms[index], nodes[index])

    order, counts = sorted(range(len(nodes)), key=preference), [0] * len(nodes)

    def fill(at: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield tuple(counts)
            return
        if left > sum(rooms[index] for index in order[at:]):
            return
        index = order[at]
        most = min(rooms[index], left)
        if at and nodes[order[at - 1]] == nodes[index]:
            most = min(most, counts[order[at - 1]])
        for count in (most, 0) if is_fixed and most else range(most, -1, -1):
            counts[index] = count
            yield from fill(at + 1, left - count)
            counts[index] = 0

    yield from fill(0, request.num_slots)


def _less(free: Free, count: int, slot: Free) -> Free:
    return Free(free.gpus - count * slot.gpus, free.cpus - count * slot.cpus)
