"""State of the GPUs and CPU slots: free, leased or quarantined. Nothing here reads the machine.

The dispatcher owns the one table of a run. A simulation owns a `fresh` one, so that what is planned and what is run
follow the same rules:

- a unit of no GPUs takes one of the CPU slots; a unit of GPUs does not take one;
- an exclusive lease is given only when nothing else is out, and nothing is given beside it;
- a lease is on one node, unless its need asks for several; CPU slots are taken where most are free;
- a GPU has one lease of its own, or shared leases whose budgets sum to no more than its memory;
- `gpu_choice` selects the GPUs.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

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


class LeaseTable:
    """The in-memory truth of which GPUs are free, leased and quarantined."""

    def __init__(
        self, inventory: Inventory, cpu_units: int, mix_models: bool = False, nodes: Sequence[str] = ("",)
    ) -> None:
        """Make the table of a run with `cpu_units` CPU slots on each of its `nodes`."""
        self.choice = GpuChoice(inventory, mix_models)
        self.cpu_units = cpu_units * len(nodes)
        self._nodes = tuple(nodes)
        self._reset()

    def _reset(self) -> None:
        self._free = self.choice.all_gpus
        self._quarantined = 0
        self._shared = 0
        """The GPUs with shared leases."""
        self._free_bytes = [round(gpu.memory_gb * 1e9) for gpu in self.choice.gpus]
        """Memory of each GPU that no budget holds."""
        self._cpu_free = dict.fromkeys(self._nodes, self.cpu_units // len(self._nodes))
        """Free CPU slots of each node that has not been lost."""
        self._out: dict[int, tuple[Lease, int]] = {}  # by slot, with the mask of its GPUs
        self._has_exclusive = False

    def fresh(self) -> "LeaseTable":
        """A table over the same GPUs with everything free and nothing quarantined."""
        table = copy(self)
        table._reset()
        return table

    def lease(self, need: Need) -> Lease | None:
        """Lease the best GPUs (or the CPU slot) that `need` can have now; None if it has to wait."""
        if self._out and (need.exclusive or self._has_exclusive):
            return None
        if need.gpus == 0:
            node = max(self._cpu_free, key=self._cpu_free.__getitem__, default=None)
            if node is None or not self._cpu_free[node]:
                return None
            self._cpu_free[node] -= 1
            return self._hand_out(need, 0, node)
        if need.shared:
            usable = (self._free | self._shared) & ~self._quarantined
            gpus = self.choice.choose_shared(need, self._free, usable, self._free_bytes)
        else:
            gpus = self.choice.choose(need, self._free)
        if not gpus:
            return None
        if need.shared:
            self._shared |= gpus
            self._free_bytes[gpus.bit_length() - 1] -= need.budget_bytes
        self._free &= ~gpus
        return self._hand_out(need, gpus)

    def _hand_out(self, need: Need, gpus: int, cpu_node: str = "") -> Lease:
        slot = 0
        while slot in self._out:
            slot += 1
        lease = Lease(self.choice.gpus_in(gpus), slot, need.exclusive, need.gpus == 0, need.budget_bytes, cpu_node)
        self._out[slot] = (lease, gpus)
        self._has_exclusive = need.exclusive
        return lease

    def give_back(self, lease: Lease) -> None:
        """Make what `lease` holds free again, save GPUs that were quarantined meanwhile.

        Giving back what is not out is a bug of ours: AssertionError.
        """
        out, gpus = self._out.get(lease.slot, (None, 0))
        assert out is lease, f"returned but not leased: {lease}"
        del self._out[lease.slot]
        self._has_exclusive = False  # an exclusive lease was the only one out
        if lease.is_cpu and lease.cpu_node in self._cpu_free:
            self._cpu_free[lease.cpu_node] += 1
        if lease.budget_bytes:
            self._free_bytes[gpus.bit_length() - 1] += lease.budget_bytes
            if any(held == gpus for _, held in self._out.values()):
                return
            self._shared &= ~gpus
        self._free |= gpus & ~self._quarantined

    def quarantine(self, gpu_id: str) -> None:
        """Never lease this GPU again, be it free or out now. A lease that holds it is still to be given back."""
        bit = self.choice.bit_of(gpu_id)
        self._quarantined |= bit
        self._free &= ~bit

    def lose_node(self, node: str) -> None:
        """Never lease anything of this node again. Leases that it has are still to be given back."""
        for gpu in self.choice.gpus:
            if gpu.node == node:
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
    def num_cpu_free(self) -> int:
        return sum(self._cpu_free.values())

    @property
    def has_exclusive(self) -> bool:
        """Whether an exclusive lease is out: nothing can start until it is given back."""
        return self._has_exclusive
