"""State of the GPUs and CPU slots: free, leased or quarantined. Nothing here reads the machine.

The dispatcher owns the one table of a run. A simulation owns a `fresh` one, so that what is planned and what is run
follow the same rules:

- a unit of no GPUs takes one of the CPU slots; a unit of GPUs does not take one;
- an exclusive lease is given only where nothing else is out, and nothing is given beside it;
- a GPU has one lease of its own, or shared leases whose budgets sum to no more than its memory;
- `gpu_choice` selects the GPUs.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need
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
    """Whether it has the machine to itself."""
    is_cpu: bool
    """Whether it holds one of the CPU slots."""
    budget_bytes: int = 0
    """Memory of its one GPU, which it shares with other leases; 0 for GPUs of its own."""

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(gpu.gpu_id for gpu in self.gpus)


NOT_OUT: tuple[None, int] = (None, 0)


class LeaseTable:
    """The in-memory truth of which GPUs are free, leased and quarantined."""

    def __init__(self, inventory: Inventory, cpu_units: int, mix_models: bool = False) -> None:
        self.choice = GpuChoice(inventory, mix_models)
        self.cpu_units = cpu_units
        self._all_bytes = tuple(round(gpu.memory_gb * 1e9) for gpu in self.choice.gpus)
        self._reset()

    def _reset(self) -> None:
        self._free = self.choice.all_gpus
        self._quarantined = 0
        self._free_bytes = list(self._all_bytes)
        """Memory of each GPU that no budget holds."""
        self._rooms: list[tuple[int, int]] = []
        """Memory without a budget and place of each GPU that another unit may share, ascending."""
        self.num_cpu_free = self.cpu_units
        self._out: dict[int, tuple[Lease, int]] = {}  # by slot, with its mask of GPUs
        self._free_slots: list[int] = []
        """Numbers below the greatest slot that was ever out, without a lease; a heap."""
        self._is_closed = False
        """Whether an exclusive lease is out."""

    def fresh(self) -> "LeaseTable":
        """A table over the same GPUs with everything free and nothing quarantined."""
        table = copy(self)
        table._reset()
        return table

    def lease(self, need: Need) -> Lease | None:
        """Lease the best GPUs (or the CPU slot) that `need` can have now; None if it has to wait."""
        if self._is_closed or (need.exclusive and self._out):
            return None
        if need.gpus == 0:
            return self._hand_out(need, 0) if self.num_cpu_free else None
        if need.shared:
            gpus = self.choice.choose_shared(need, self._free, self._rooms)
        else:
            gpus = self.choice.choose(need, self._free)
        return self._hand_out(need, gpus) if gpus else None

    def most_memory_gb(self, need: Need) -> float:
        """Upper bound of the memory with which `need` could be leased now; -1 if no memory is little enough."""
        if need.gpus == 0 or self._is_closed or (need.exclusive and self._out):
            return -1.0
        return self.choice.most_memory_gb(need, self._free, self._rooms)

    def _hand_out(self, need: Need, gpus: int) -> Lease:
        slot = heappop(self._free_slots) if self._free_slots else len(self._out)
        budget_bytes = need.budget_bytes if need.shared else 0
        lease = Lease(self.choice.gpus_in(gpus), slot, need.exclusive, not gpus, budget_bytes)
        self._out[slot] = (lease, gpus)
        self._free &= ~gpus
        if lease.is_cpu:
            self.num_cpu_free -= 1
        elif need.shared:
            place = gpus.bit_length() - 1
            self._set_room(place, self._free_bytes[place] - need.budget_bytes, is_open=not need.exclusive)
        self._is_closed = need.exclusive
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
        out, gpus = self._out.get(lease.slot, NOT_OUT)
        assert out is lease, f"returned but not leased: {lease}"
        del self._out[lease.slot]
        heappush(self._free_slots, lease.slot)
        self._is_closed = False
        self.num_cpu_free += lease.is_cpu
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
        if not any(gpus & bit for _, gpus in self._out.values()):
            self._free |= bit

    def why_never(self, need: Need) -> str:
        """Why no lease for `need` can ever be given by the GPUs not quarantined; "" where one could be."""
        if need.gpus > 0:
            return self.choice.why_never(need, self.choice.all_gpus & ~self._quarantined)
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
