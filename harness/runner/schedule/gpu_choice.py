"""Which GPUs a unit may have, and which of the free ones it is best given: pure, no state of a run.

Sets of GPUs are bit masks over `GpuChoice.gpus`, so that a free set is one integer and a choice can be cached.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb, inf

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need

MAX_SETS_COMPARED = 2_000
"""Where NVLink is uneven, every set of n free GPUs is compared up to this many; beyond it sets are grown GPU by
GPU from each free GPU, which finds the best set on every topology sold so far but is not proven to."""


Rating = tuple[float, ...]
"""Sorts sets of GPUs for one need, the best first."""
NOTHING: tuple[Rating, int] = ((), 0)
"""No set of GPUs."""


@dataclass(slots=True)
class _Options:
    """What is known about one need: the masks it can be served from, and the choices made so far."""

    pools: tuple[int, ...]
    mixed_pools: tuple[int, ...]
    any_memory: int = 0
    """Every GPU that a lease could hold if the need asked for no memory."""
    refused: int = 0
    """The free GPUs for which there was no set when one was last sought in vain."""


class GpuChoice:
    """The GPUs of a run, as sets from which leases are cut.

    A *pool* of a need is a set of adequate GPUs any `need.gpus` of which may be leased together: the GPUs of one
    model, or, where `mix_models`, all models at once when no single one has enough free.
    """

    def __init__(self, inventory: Inventory, mix_models: bool = False) -> None:
        self.gpus: tuple[Gpu, ...] = tuple(sorted(inventory.gpus, key=lambda gpu: gpu.index))
        self.mix_models = mix_models
        self.all_gpus = (1 << len(self.gpus)) - 1
        self._bit_of = {gpu.gpu_id: 1 << place for place, gpu in enumerate(self.gpus)}
        places = {gpu.gpu_id: place for place, gpu in enumerate(self.gpus)}
        self._links: dict[tuple[int, int], int] = {}
        """Links by both orders of two places; those of a place with itself are none."""
        for pair, number in inventory.num_links.items():
            if len(ends := [places[gpu_id] for gpu_id in pair if gpu_id in places]) == 2:
                self._links[ends[0], ends[1]] = self._links[ends[1], ends[0]] = number
        self._options: dict[Need, _Options] = {}
        self._best_sets: dict[tuple[int, int], tuple[Rating, int]] = {}
        """By the free GPUs of one pool and a number, the best set of so many of them."""
        self._memories_gb = sorted({gpu.memory_gb for gpu in self.gpus})
        self._gpus_in: dict[int, tuple[Gpu, ...]] = {}

    def bit_of(self, gpu_id: str) -> int:
        """The mask of the one GPU `gpu_id`; KeyError where this run does not have it."""
        return self._bit_of[gpu_id]

    def gpus_in(self, mask: int) -> tuple[Gpu, ...]:
        """The GPUs of `mask`, by index."""
        gpus = self._gpus_in.get(mask)
        if gpus is None:
            gpus = self._gpus_in[mask] = tuple(self.gpus[place] for place in places_in(mask))
        return gpus

    def eligible(self, need: Need) -> int:
        """Every GPU that some lease for `need` could hold if all were free; 0 for a need of no GPUs."""
        options = self._options_of(need)
        return _union(options.mixed_pools) | _union(options.pools)

    def is_interchangeable(self, need: Need, gpus: int) -> bool:
        """Whether any `need.gpus` of `gpus` will do, so that counting free GPUs is enough."""
        options = self._options_of(need)
        return not need.shared and (gpus in options.pools or gpus in options.mixed_pools)

    def choose(self, need: Need, free: int) -> int:
        """The best `need.gpus` (at least 1) of the `free` GPUs, or 0 where no lease can be cut from them.

        Most NVLink connections inside the set first; then the least memory, so that big GPUs stay for those who need
        them; then the pool left with the fewest free GPUs; then neighbouring indexes, lowest first.
        """
        options = self._options.get(need) or self._options_of(need)
        # Where there was no set among the GPUs of `refused`, a pool that has no other GPU free has none now.
        gained = free & ~options.refused
        if not gained:
            return 0
        _, chosen = self._best(options.pools, free, gained, need.gpus)
        if not chosen and options.mixed_pools:
            _, chosen = self._best(options.mixed_pools, free, gained, need.gpus)
        if not chosen:
            options.refused = free
        return chosen

    def choose_shared(self, need: Need, free: int, rooms: Sequence[tuple[int, int]]) -> int:
        """The GPU on which a unit with a budget is best placed, or 0 where no GPU has room for it.

        Best fit: of the GPUs already shared, the one with the least memory left; then one of the wholly `free` GPUs.
        `rooms` are the shared GPUs, as (memory without a budget, index in `gpus`), ascending.
        """
        eligible = self.eligible(need)
        for position in range(bisect_left(rooms, (need.budget_bytes, 0)), len(rooms)):
            place = rooms[position][1]
            if eligible >> place & 1:
                return 1 << place
        return self.choose(need, free)

    def most_memory_gb(self, need: Need, free: int, rooms: Sequence[tuple[int, int]]) -> float:
        """Upper bound of the memory with which `need` could be served now; -1 where no memory is little enough."""
        any_memory = self._options_of(need).any_memory
        memories_gb = sorted(self.gpus[place].memory_gb for place in places_in(free & any_memory))
        most_gb = memories_gb[-need.gpus] if len(memories_gb) >= need.gpus else -1.0
        if need.shared:
            most_bytes = next((room for room, place in reversed(rooms) if any_memory >> place & 1), -1)
            most_gb = max(most_gb, (most_bytes + 1) / 1e9)  # a byte more: budgets are rounded
        return most_gb

    def why_never(self, need: Need, usable: int) -> str:
        """The field of `need` that no lease from the `usable` GPUs can meet, with the inventory; "" if one can."""
        if self.choose(need, usable):
            return ""
        gpus = self.gpus_in(usable)
        have = f"this run has {Inventory(gpus=gpus).describe()}"
        if usable != self.all_gpus:
            have += f" ({len(self.gpus) - len(gpus)} quarantined)"
        reason = "" if len(gpus) < need.gpus else f"; {self._failing_field(need, usable)}"
        return f"needs {need}{reason}; {have}"

    def _failing_field(self, need: Need, usable: int) -> str:
        gpus = self.gpus_in(usable)
        for name, adequate in (
            (f"model: {{}} have {need.model!r} in their name", _has_model),
            (f"memory: {{}} have {need.memory_gb:g} GB", _has_memory),
            (f"capability: {{}} have {_dotted(need.min_capability)}", _has_capability),
        ):
            kept = tuple(gpu for gpu in gpus if adequate(gpu, need))
            if len(kept) < need.gpus:
                return name.format(f"{len(kept)} of {len(gpus)}")
            gpus = kept
        num_global = sum(not gpu.is_mig for gpu in gpus)
        if num_global < need.gpus:
            return f"MIG instances cannot be combined, and {num_global} of these GPUs are not partitioned"
        return f"mixed models are not allowed in one lease, and no single model has {need.gpus}"

    def _options_of(self, need: Need) -> _Options:
        options = self._options.get(need)
        if options is None:
            # Needs that differ in memory, and that the same GPUs meet, have the same options.
            rank = bisect_left(self._memories_gb, need.memory_gb)
            memory_gb = self._memories_gb[rank] if rank < len(self._memories_gb) else inf
            kind = replace(need, memory_gb=memory_gb, exclusive=False, shared=False)
            options = self._options.get(kind) or self._make_options(kind)
            self._options[kind] = self._options[need] = options
        return options

    def _make_options(self, need: Need) -> _Options:
        by_model: dict[str, int] = {}
        any_memory = 0
        for gpu in self.gpus if need.gpus > 0 else ():
            if (need.gpus == 1 or not gpu.is_mig) and _has_model(gpu, need) and _has_capability(gpu, need):
                bit = self._bit_of[gpu.gpu_id]
                any_memory |= bit
                if _has_memory(gpu, need):
                    by_model[gpu.model] = by_model.get(gpu.model, 0) | bit
        pools = tuple(mask for mask in by_model.values() if mask.bit_count() >= need.gpus)
        mixed = (_union(by_model.values()),) if self.mix_models and need.gpus > 1 else ()
        return _Options(pools, tuple(mask for mask in mixed if mask.bit_count() >= need.gpus), any_memory)

    def _best(self, pools: Sequence[int], free: int, gained: int, num_gpus: int) -> tuple[Rating, int]:
        """The best set of `num_gpus` free GPUs of one of the pools that have a GPU of `gained`, with its rating."""
        best = NOTHING
        for pool in pools:
            if pool & gained:
                here = pool & free
                found = self._best_sets.get((here, num_gpus))
                if found is None:
                    found = self._best_sets[here, num_gpus] = self._best_of(places_in(here), num_gpus)
                if found[1] and (not best[1] or found < best):
                    best = found
        return best

    def _best_of(self, places: list[int], num_gpus: int) -> tuple[Rating, int]:
        """The best set of `num_gpus` of these places."""
        rated = (
            (
                -sum(self._links.get(pair, 0) for pair in combinations(members, 2)),
                max(self.gpus[place].memory_gb for place in members),
                len(places) - num_gpus,
                self.gpus[members[-1]].index - self.gpus[members[0]].index,
                *members,
            )
            for members in self._candidates(places, num_gpus)
        )
        best = min(rated, default=())
        return best, sum(1 << int(place) for place in best[-num_gpus:]) if best else 0

    def _candidates(self, places: list[int], num_gpus: int) -> Iterator[tuple[int, ...]]:
        """Sets of `num_gpus` of these places (ascending) among which the best is."""
        if len(places) < num_gpus:
            return
        if len({self._links.get(pair, 0) for pair in combinations(places, 2)}) <= 1:
            # Any set is linked alike: the one of least span is a window of the ascending list.
            for first in range(len(places) - num_gpus + 1):
                yield tuple(places[first : first + num_gpus])
        elif comb(len(places), num_gpus) <= MAX_SETS_COMPARED:
            yield from combinations(places, num_gpus)
        else:
            for seed in places:
                yield self._grown_from(seed, places, num_gpus)

    def _grown_from(self, seed: int, places: list[int], num_gpus: int) -> tuple[int, ...]:
        members = [seed]
        while len(members) < num_gpus:
            outside = [place for place in places if place not in members]
            num_links = {p: sum(self._links.get((p, m), 0) for m in members) for p in outside}
            members.append(max(outside, key=lambda p: (num_links[p], -abs(p - seed), -p)))
        return tuple(sorted(members))


def places_in(mask: int) -> list[int]:
    """Return the indexes of the bits of a mask, ascending."""
    places = []
    while mask:
        lowest = mask & -mask
        places.append(lowest.bit_length() - 1)
        mask ^= lowest
    return places


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _has_model(gpu: Gpu, need: Need) -> bool:
    return need.model is None or need.model.lower() in gpu.model.lower()


def _has_memory(gpu: Gpu, need: Need) -> bool:
    return gpu.memory_gb >= need.memory_gb


def _has_capability(gpu: Gpu, need: Need) -> bool:
    return need.min_capability is None or gpu.capability >= need.min_capability


def _dotted(capability: tuple[int, int] | None) -> str:
    return "any" if capability is None else f"{capability[0]}.{capability[1]}"
