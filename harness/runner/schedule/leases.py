"""State of the GPUs and CPU slots: free, leased or quarantined. Nothing here reads the machine.

The dispatcher owns the one table of a run. A simulation owns a `fresh` one, so that what is planned and what is run
follow the same rules:

- a unit of no GPUs takes one of the CPU slots; a unit of GPUs does not take one;
- an exclusive lease is given only on a node with nothing else out, and nothing is given on that node beside it;
- a lease is on one node, unless its need asks for several; CPU slots are taken where most are free;
- a lease of several nodes is exclusive on each of them;
- a GPU has one lease of its own, or shared leases whose budgets sum to no more than its memory;
- `gpu_choice` selects the GPUs.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush

from harness.core.need import Need
from harness.machine.inventory import Gpu, Inventory
from harness.runner.schedule.gpu_choice import GpuChoice

MAX_NAMED = 3
"""Tests that keep their file from running which are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Resources of one attempt until they are returned."""

    gpus: tuple[Gpu, ...]
    """By index; empty for a unit of no GPUs."""
    slot: int
    """Lowest number, from 0, that no other current lease has: it distinguishes concurrent attempts."""
    exclusive: bool
    """Whether it has its nodes to itself."""
    is_cpu: bool
    """Whether it holds one of the CPU slots."""
    budget_bytes: int = 0
    """Memory of its one GPU, which it shares with other leases; 0 for GPUs of its own."""
    cpu_node: str = ""
    """Node of its CPU slot; empty without a cluster, and for a lease of GPUs."""

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(gpu.gpu_id for gpu in self.gpus)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of its GPUs or CPU slot; the attempt runs on the first. One empty name without a cluster."""
        return tuple(dict.fromkeys(gpu.node for gpu in self.gpus)) or (self.cpu_node,)


NOT_OUT: tuple[None, int, tuple[str, ...]] = (None, 0, ())


class LeaseTable:
    """The in-memory truth of which GPUs are free, leased and quarantined."""

    def __init__(
        self, inventory: Inventory, cpu_units: int, mix_models: bool = False, nodes: Sequence[str] = ("",)
    ) -> None:
        """Make the table of a run with `cpu_units` CPU slots on each of its `nodes`."""
        self.choice = GpuChoice(inventory, mix_models)
        self.cpu_units = cpu_units * len(nodes)
        self._nodes = tuple(nodes)
        self._all_bytes = tuple(round(gpu.memory_gb * 1e9) for gpu in self.choice.gpus)
        self._reset()

    def _reset(self) -> None:
        self._free = self.choice.all_gpus
        self._quarantined = 0
        self._free_bytes = list(self._all_bytes)
        """Memory of each GPU that no budget holds."""
        self._rooms: list[tuple[int, int]] = []
        """Memory without a budget and place of each GPU that another unit may share, ascending."""
        self._cpu_free = dict.fromkeys(self._nodes, self.cpu_units // len(self._nodes))
        """Free CPU slots of each node that has not been lost."""
        self._out: dict[int, tuple[Lease, int, tuple[str, ...]]] = {}  # by slot, with its mask of GPUs and its nodes
        self._free_slots: list[int] = []
        """Numbers below the greatest slot that was ever out, without a lease; a heap."""
        self._num_out = dict.fromkeys((*self._nodes, *self.choice.node_gpus), 0)
        """Leases that are out, by node."""
        self._busy_gpus = 0
        """The GPUs of nodes with a lease out, and of those with an exclusive one."""
        self._closed_gpus = 0
        self._closed: set[str] = set()
        """Nodes with an exclusive lease."""

    def fresh(self) -> "LeaseTable":
        """A table over the same GPUs with everything free and nothing quarantined."""
        table = copy(self)
        table._reset()
        return table

    def lease(self, need: Need) -> Lease | None:
        """Lease the best GPUs (or the CPU slot) that `need` can have now; None if it has to wait."""
        alone = need.exclusive or need.nodes > 1
        if need.gpus == 0:
            node = self._cpu_node(alone)
            return None if node is None else self._hand_out(need, 0, node)
        free = self._free & ~(self._busy_gpus if alone else self._closed_gpus)
        if need.shared:
            gpus = self.choice.choose_shared(need, free, [] if alone else self._rooms)
        else:
            gpus = self.choice.choose(need, free)
        return self._hand_out(need, gpus) if gpus else None

    def most_memory_gb(self, need: Need) -> float:
        """Upper bound of the memory with which `need` could be leased now; -1 if no memory is little enough."""
        if need.gpus == 0:
            return -1.0
        alone = need.exclusive or need.nodes > 1
        free = self._free & ~(self._busy_gpus if alone else self._closed_gpus)
        return self.choice.most_memory_gb(need, free, [] if alone else self._rooms)

    def _cpu_node(self, alone: bool) -> str | None:
        """The node with the most free CPU slots; None if none has one."""
        best, most = None, 0
        for node, num_free in self._cpu_free.items():
            if num_free > most and node not in self._closed and not (alone and self._num_out[node]):
                best, most = node, num_free
        return best

    def _hand_out(self, need: Need, gpus: int, cpu_node: str = "") -> Lease:
        slot = heappop(self._free_slots) if self._free_slots else len(self._out)
        alone = need.exclusive or need.nodes > 1
        budget_bytes = need.budget_bytes if need.shared else 0
        lease = Lease(self.choice.gpus_in(gpus), slot, alone, not gpus, budget_bytes, cpu_node)
        nodes = self.choice.nodes_in(gpus) if gpus else (cpu_node,)
        self._out[slot] = (lease, gpus, nodes)
        self._free &= ~gpus
        if lease.is_cpu:
            self._cpu_free[cpu_node] -= 1
        elif need.shared:
            place = gpus.bit_length() - 1
            self._set_room(place, self._free_bytes[place] - need.budget_bytes, is_open=not alone)
        for node in nodes:
            if not self._num_out[node]:
                self._busy_gpus |= self.choice.node_gpus.get(node, 0)
            self._num_out[node] += 1
            if alone:
                self._closed.add(node)
                self._closed_gpus |= self.choice.node_gpus.get(node, 0)
        return lease

    def _set_room(self, place: int, free_bytes: int, *, is_open: bool) -> None:
        """Note the memory of a GPU that no budget holds; another unit may share it if it is open."""
        old = (self._free_bytes[place], place)
        position = bisect_left(self._rooms, old)
        if self._rooms[position : position + 1] == [old]:
            del self._rooms[position]
        self._free_bytes[place] = free_bytes
        if is_open:
            insort(self._rooms, (free_bytes, place))

    def give_back(self, lease: Lease) -> None:
        """Make what `lease` holds free again, save GPUs that were quarantined meanwhile.

        Giving back what is not out is a bug of ours: AssertionError.
        """
        out, gpus, nodes = self._out.get(lease.slot, NOT_OUT)
        assert out is lease, f"returned but not leased: {lease}"
        del self._out[lease.slot]
        heappush(self._free_slots, lease.slot)
        for node in nodes:
            self._num_out[node] -= 1
            if not self._num_out[node]:
                self._busy_gpus &= ~self.choice.node_gpus.get(node, 0)
            if lease.exclusive:
                self._closed.remove(node)
                self._closed_gpus &= ~self.choice.node_gpus.get(node, 0)
        if lease.is_cpu and lease.cpu_node in self._cpu_free:
            self._cpu_free[lease.cpu_node] += 1
        if lease.budget_bytes:
            place = gpus.bit_length() - 1
            free_bytes = self._free_bytes[place] + lease.budget_bytes
            is_shared = free_bytes < self._all_bytes[place]
            self._set_room(place, free_bytes, is_open=is_shared and not gpus & self._quarantined)
            if is_shared:
                return
        self._free |= gpus & ~self._quarantined

    def quarantine(self, gpu_id: str) -> None:
        """Never lease this GPU again, be it free or out now. A lease that holds it is still to be given back."""
        bit = self.choice.bit_of(gpu_id)
        self._quarantined |= bit
        self._free &= ~bit
        place = bit.bit_length() - 1
        self._set_room(place, self._free_bytes[place], is_open=False)

    def readmit(self, gpu_id: str) -> None:
        """Lease a quarantined GPU again, once it is given back if a lease still holds it."""
        bit = self.choice.bit_of(gpu_id)
        self._quarantined &= ~bit
        if not any(gpus & bit for _, gpus, _ in self._out.values()):
            self._free |= bit

    def lose_node(self, node: str) -> None:
        """Never lease anything of this node again. Leases that it has are still to be given back."""
        for gpu in self.choice.gpus_in(self.choice.node_gpus.get(node, 0)):
            self.quarantine(gpu.gpu_id)
        self._cpu_free.pop(node, None)

    def why_never(self, need: Need) -> str:
        """Why no lease for `need` can ever be given by the GPUs not quarantined; "" where one could be."""
        if need.gpus > 0:
            return self.choice.why_never(need, self.choice.all_gpus & ~self._quarantined)
        if not self._cpu_free:
            return f"needs {need}, hence a CPU slot; every node of this run is lost"
        return "" if self.cpu_units > 0 else f"needs {need}, hence a CPU slot; this run has none (cpu_units is 0)"

    def who_keeps_it(self, asks: Mapping[str, Need]) -> str:
        """Name the tests that keep a file from running, with a remedy, for a file whose tests ask for these.

        "" where no test alone does, or every one.
        """
        keeping = [test for test, need in asks.items() if self.why_never(need)]
        if not keeping or len(keeping) == len(asks):
            return ""
        named = [*keeping[:MAX_NAMED], *([f"{num_more} more"] if (num_more := len(keeping) - MAX_NAMED) > 0 else [])]
        who = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
        verb, it = ("asks", "it") if len(keeping) == 1 else ("ask", "them")
        own = "a file of its own" if len(keeping) == 1 else "a file of their own"
        return f"; only {who} {verb} for that: move {it} to {own}, so that the other tests of this file can run"

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are out, by slot."""
        return tuple(self._out[slot][0] for slot in sorted(self._out))

    @property
    def free_gpus(self) -> tuple[Gpu, ...]:
        return self.choice.gpus_in(self._free)

    @property
    def quarantined_gpus(self) -> tuple[Gpu, ...]:
        return self.choice.gpus_in(self._quarantined)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, lost or not."""
        return len(self._num_out)

    @property
    def num_cpu_free(self) -> int:
        return sum(self._cpu_free.values())
