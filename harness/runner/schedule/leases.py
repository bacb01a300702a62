"""The GPUs and CPU slots of a run: which are free, leased or quarantined, and which of them a unit is given.

The dispatcher owns the one table of a run; a simulation owns a `fresh` one, so that a plan and a run follow the same
rules. Nothing here reads the machine.

- A unit without GPUs takes a CPU slot; a unit with GPUs takes none.
- An exclusive lease is given only if nothing is leased, and nothing is leased beside it.
- A GPU has one lease of its own, or shared leases whose budgets sum to at most its memory.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import count

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need

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
    budget_bytes: int = 0
    """Memory of its one GPU, which it shares with other leases; 0 for GPUs of its own."""

    @property
    def is_cpu(self) -> bool:
        """Whether it holds one of the CPU slots."""
        return not self.gpus

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(gpu.gpu_id for gpu in self.gpus)


class LeaseTable:
    """The in-memory truth of which GPUs are free, leased and quarantined."""

    def __init__(self, inventory: Inventory, cpu_units: int, mix_models: bool = False) -> None:
        self.gpus = tuple(sorted(inventory.gpus, key=lambda gpu: gpu.index))
        self.cpu_units = cpu_units
        self.mix_models = mix_models
        self._chosen: dict[tuple[Need, tuple[Gpu, ...]], tuple[Gpu, ...]] = {}
        """The best GPUs for a need, by the free ones."""
        self._reset()

    def _reset(self) -> None:
        self._out: dict[int, Lease] = {}
        """By slot."""
        self._quarantined: set[str] = set()
        self._refused: set[Need] = set()
        """Needs that have to wait until a lease is returned."""
        self._count()

    def _count(self) -> None:
        """Derive from the leases what is free."""
        leases = self._out.values()
        self.num_cpu_free = self.cpu_units - sum(lease.is_cpu for lease in leases)
        self._is_closed = any(lease.exclusive for lease in leases)
        held = self._quarantined.union(*(lease.gpu_ids for lease in leases))
        self.free_gpus = tuple(gpu for gpu in self.gpus if gpu.gpu_id not in held)
        """The GPUs that no lease holds and that are not quarantined."""
        budgets = [(lease.gpus[0].gpu_id, lease.budget_bytes) for lease in leases if lease.budget_bytes]
        shared = {gpu_id for gpu_id, _ in budgets} - self._quarantined
        self._rooms = sorted(
            (round(gpu.memory_gb * 1e9) - sum(each for gpu_id, each in budgets if gpu_id == gpu.gpu_id), gpu.index, gpu)
            for gpu in self.gpus
            if gpu.gpu_id in shared
        )
        """Memory without a budget of each GPU that leases share, the least first."""

    def fresh(self) -> "LeaseTable":
        """A table over the same GPUs with everything free and nothing quarantined."""
        table = copy(self)
        table._reset()
        return table

    # ---- leases

    def lease(self, need: Need) -> Lease | None:
        """Lease the best GPUs (or a CPU slot) that `need` can have now; None if it has to wait."""
        if need in self._refused:
            return None
        gpus = (self._shared_gpu(need) or self._best_gpus(need, self.free_gpus)) if need.gpus else ()
        is_alone = self._is_closed or (need.exclusive and self._out)
        if is_alone or len(gpus) < need.gpus or (not gpus and self.num_cpu_free < 1):
            self._refused.add(need)
            return None
        slot = next(number for number in count() if number not in self._out)
        lease = self._out[slot] = Lease(gpus, slot, need.exclusive, need.budget_bytes)
        self._count()
        return lease

    def give_back(self, lease: Lease) -> None:
        """Make the resources of a lease free again, except GPUs that were quarantined meanwhile.

        AssertionError for a lease that is not out: a bug of ours.
        """
        assert self._out.get(lease.slot) is lease, f"returned but not leased: {lease}"
        del self._out[lease.slot]
        self._refused.clear()
        self._count()

    def quarantine(self, gpu_id: str) -> None:
        """Lease this GPU no more, whether it is free or leased now. A lease that holds it is still to be returned."""
        self._quarantined.add(gpu_id)
        self._count()

    def readmit(self, gpu_id: str) -> None:
        """Lease a quarantined GPU again, once it is returned if a lease still holds it."""
        self._quarantined.discard(gpu_id)
        self._refused.clear()
        self._count()

    def add(self, gpus: Sequence[Gpu]) -> None:
        """Lease these GPUs too, which have come into a cluster."""
        self.gpus += tuple(gpus)
        self._refused.clear()
        self._count()

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are out, by slot."""
        return tuple(self._out[slot] for slot in sorted(self._out))

    # ---- the choice of GPUs

    def _shared_gpu(self, need: Need) -> tuple[Gpu, ...]:
        """The shared GPU that a budget leaves with the least memory; empty where no shared GPU has room."""
        rooms = (gpu for room, _, gpu in self._rooms if need.shared and room >= need.budget_bytes and _meets(gpu, need))
        return next(((gpu,) for gpu in rooms), ())

    def _best_gpus(self, need: Need, free: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """The best `need.gpus` of the free GPUs, or none where they are too few.

        Fewest models first; then the least memory, so that big GPUs stay for those who need them; then the model with
        the fewest GPUs left; then neighbouring indexes, lowest first.
        """
        if len(free) < need.gpus:
            return ()
        if (key := (need, free)) not in self._chosen:
            num = need.gpus
            sets = [
                (pool[first : first + num], len(pool))
                for pool in self._pools(need, free)
                for first in range(len(pool) - num + 1)
            ]
            self._chosen[key] = tuple(min(sets, key=_rating, default=((), 0))[0])
        return self._chosen[key]

    def _pools(self, need: Need, gpus: Sequence[Gpu]) -> list[list[Gpu]]:
        """Sets of GPUs any `need.gpus` of which may be leased together: of a node, and of a model unless models mix."""
        pools: dict[tuple[str, str], list[Gpu]] = {}
        for gpu in gpus:
            for models in (gpu.model, "any") if self.mix_models else (gpu.model,):
                if _meets(gpu, need):
                    pools.setdefault((gpu.node, models), []).append(gpu)
        return [pool for pool in pools.values() if len(pool) >= need.gpus]

    # ---- possible leases, whatever is leased now

    def eligible(self, need: Need) -> frozenset[str]:
        """Ids of all GPUs that a lease for `need` could hold if all were free; empty for a need of no GPUs."""
        pools = self._pools(need, self.gpus) if need.gpus else ()
        return frozenset(gpu.gpu_id for pool in pools for gpu in pool)

    def at_once(self, need: Need) -> int:
        """How many units of `need` can run side by side; 0 where none ever can."""
        num_units = len(self.eligible(need)) // need.gpus if need.gpus else self.cpu_units
        return min(1, num_units) if need.exclusive else num_units

    def why_never(self, need: Need) -> str:
        """Why no lease for `need` can ever be given by the GPUs not quarantined; "" where one could be."""
        if not need.gpus:
            return "" if self.cpu_units > 0 else f"needs {need}, hence a CPU slot; this run has none (cpu_units is 0)"
        usable = tuple(gpu for gpu in self.gpus if gpu.gpu_id not in self._quarantined)
        if self._best_gpus(need, usable):
            return ""
        have = f"this run has {Inventory(gpus=usable).describe()}"
        if self._quarantined:
            have += f" ({len(self._quarantined)} quarantined)"
        reason = "" if len(usable) < need.gpus else f"; {_failing_field(need, usable)}"
        return f"needs {need}{reason}; {have}"

    def who_keeps_it(self, asks: Mapping[str, Need]) -> str:
        """Name the tests that keep a file from running, with a remedy, given the need of each of its tests.

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


def _rating(found: tuple[Sequence[Gpu], int]) -> tuple[float, ...]:
    """Sort key of a set of GPUs, with the size of its pool; the best first."""
    gpus, num_in_pool = found
    indexes = [gpu.index for gpu in gpus]
    num_models, most_gb = len({gpu.model for gpu in gpus}), max(gpu.memory_gb for gpu in gpus)
    return (num_models, most_gb, num_in_pool, indexes[-1] - indexes[0], *indexes)


def _meets(gpu: Gpu, need: Need) -> bool:
    """Whether a GPU may be in a lease for `need`."""
    return (
        (need.model or "").lower() in gpu.model.lower()
        and gpu.memory_gb >= need.memory_gb
        and gpu.capability >= (need.min_capability or (0, 0))
        and not (gpu.is_mig and need.gpus > 1)
    )


def _failing_field(need: Need, gpus: Sequence[Gpu]) -> str:
    """The first field of `need` that too few of these GPUs meet."""
    asked = Need(gpus=1)
    for field, text in (
        ("model", f"model: {{}} have {need.model!r} in their name"),
        ("memory_gb", f"memory: {{}} have {need.memory_gb:g} GB"),
        ("min_capability", "capability: {} have " + ".".join(map(str, need.min_capability or ()))),
    ):
        asked = replace(asked, **{field: getattr(need, field)})
        kept = [gpu for gpu in gpus if _meets(gpu, asked)]
        if len(kept) < need.gpus:
            return text.format(f"{len(kept)} of {len(gpus)}")
        gpus = kept
    num_whole = sum(not gpu.is_mig for gpu in gpus)
    if num_whole < need.gpus:
        return f"MIG instances cannot be combined, and {num_whole} of these GPUs are not partitioned"
    if gpus[0].node:
        return f"the GPUs of a test are those of one node, and no node has {need.gpus} of one model"
    return f"mixed models are not allowed in one lease, and no single model has {need.gpus}"
