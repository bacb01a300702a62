"""Which GPUs a unit may have, and which of the free ones it is best given: pure, no state of a run.

Sets of GPUs are bit masks over `GpuChoice.gpus`, so that a free set is one integer and a choice can be cached.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

from harness.core.need import Need
from harness.machine.inventory import Gpu, Inventory

MAX_SETS_COMPARED = 2_000
"""Where NVLink is uneven, every set of n free GPUs is compared up to this many; beyond it sets are grown GPU by
GPU from each free GPU, which finds the best set on every topology sold so far but is not proven to."""


@dataclass(slots=True)
class _Options:
    """What is known about one need: the masks it can be served from, and the choices made so far."""

    pools: tuple[int, ...]
    mixed_pools: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """For a need of several nodes: of each model (or of all, mixed), the adequate GPUs of each node with enough."""
    chosen: dict[int, int] = field(default_factory=dict)


class GpuChoice:
    """The GPUs of a run, as sets from which leases are cut.

    A *pool* of a need is a set of adequate GPUs any `need.gpus` of which may be leased together: the GPUs of one
    model on one node, or, where `mix_models`, all models of a node at once when no single one has enough free.
    """

    def __init__(self, inventory: Inventory, mix_models: bool = False) -> None:
        self.gpus: tuple[Gpu, ...] = tuple(sorted(inventory.gpus, key=lambda gpu: gpu.index))
        self.mix_models = mix_models
        self.all_gpus = (1 << len(self.gpus)) - 1
        self._bit_of = {gpu.gpu_id: 1 << place for place, gpu in enumerate(self.gpus)}
        self._links = [
            [inventory.num_links.get(frozenset((a.gpu_id, b.gpu_id)), 0) for b in self.gpus] for a in self.gpus
        ]
        self._options: dict[Need, _Options] = {}
        self._gpus_in: dict[int, tuple[Gpu, ...]] = {}

    def bit_of(self, gpu_id: str) -> int:
        """The mask of the one GPU `gpu_id`; KeyError where this run does not have it."""
        return self._bit_of[gpu_id]

    def gpus_in(self, mask: int) -> tuple[Gpu, ...]:
        """The GPUs of `mask`, by index."""
        gpus = self._gpus_in.get(mask)
        if gpus is None:
            gpus = self._gpus_in[mask] = tuple(gpu for place, gpu in enumerate(self.gpus) if mask >> place & 1)
        return gpus

    def eligible(self, need: Need) -> int:
        """Every GPU that some lease for `need` could hold if all were free; 0 for a need of no GPUs."""
        options = self._options_of(need)
        return _union(options.mixed_pools) | _union(options.pools) | _union(tuple(map(_union, options.groups)))

    def is_interchangeable(self, need: Need, gpus: int) -> bool:
        """Whether any `need.gpus` of `gpus` will do, so that counting free GPUs is enough."""
        options = self._options_of(need)
        return not need.shared and (gpus in options.pools or gpus in options.mixed_pools)

    def choose(self, need: Need, free: int) -> int:
        """The best `need.gpus` (at least 1) of the `free` GPUs, or 0 where no lease can be cut from them.

        Most NVLink connections inside the set first; then the least memory, so that big GPUs stay for those who need
        them; then the pool left with the fewest free GPUs; then neighbouring indexes, lowest first.
        """
        options = self._options_of(need)
        chosen = options.chosen.get(free)
        if chosen is None:
            chosen = self._spread(options.groups, free, need) if need.nodes > 1 else 0
            chosen = (
                chosen or self._best(options.pools, free, need.gpus) or self._best(options.mixed_pools, free, need.gpus)
            )
            options.chosen[free] = chosen
        return chosen

    def choose_shared(self, need: Need, free: int, usable: int, free_bytes: Sequence[int]) -> int:
        """The GPU on which a unit with a budget is best placed, or 0 where no usable GPU has room for it.

        Best fit: of the GPUs already shared, the one with the least memory left; then one of the wholly `free` GPUs.
        `free_bytes` is the memory without a budget of each GPU. So whole GPUs stay free for other units.
        """
        rest = self.eligible(need) & usable & ~free
        places = (place for place in range(len(self.gpus)) if rest >> place & 1)
        fits = [(free_bytes[place], place) for place in places if free_bytes[place] >= need.budget_bytes]
        return 1 << min(fits)[1] if fits else self.choose(need, free)

    def why_never(self, need: Need, usable: int) -> str:
        """The field of `need` that no lease from the `usable` GPUs can meet, with the inventory; "" if one can."""
        if self.choose(need, usable):
            return ""
        gpus = self.gpus_in(usable)
        have = f"this run has {Inventory(gpus=gpus).describe()}"
        if usable != self.all_gpus:
            have += f" ({len(self.gpus) - len(gpus)} quarantined)"
        reason = "" if len(gpus) < need.gpus else f"; {self._failing_field(need, gpus)}"
        return f"needs {need}{reason}; {have}"

    def _failing_field(self, need: Need, gpus: tuple[Gpu, ...]) -> str:
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
        on_nodes = Counter(gpu.node for gpu in gpus)
        if need.nodes > 1:
            num_nodes = sum(count >= need.gpus // need.nodes for count in on_nodes.values())
            return f"hence {need.gpus // need.nodes} on each node: {num_nodes} of {len(on_nodes)} nodes have so many"
        most = max(on_nodes.values())
        if most < need.gpus:
            return f"a file stays on one node, and no node has more than {most} of them"
        return f"mixed models are not allowed in one lease, and no single model has {need.gpus}"

    def _options_of(self, need: Need) -> _Options:
        options = self._options.get(need)
        if options is None:
            options = self._options[need] = self._make_options(need)
        return options

    def _make_options(self, need: Need) -> _Options:
        by_model: dict[tuple[str, str], int] = {}
        by_node: dict[str, int] = {}
        if need.gpus > 0:
            for gpu in self.gpus:
                combines = need.gpus // need.nodes == 1 or not gpu.is_mig
                if combines and _has_model(gpu, need) and _has_memory(gpu, need) and _has_capability(gpu, need):
                    bit = self._bit_of[gpu.gpu_id]
                    by_model[gpu.node, gpu.model] = by_model.get((gpu.node, gpu.model), 0) | bit
                    by_node[gpu.node] = by_node.get(gpu.node, 0) | bit
        if need.nodes > 1:
            return _Options((), (), self._groups(by_model, need))
        pools = tuple(mask for mask in by_model.values() if mask.bit_count() >= need.gpus)
        mixed = by_node.values() if self.mix_models and need.gpus > 1 else ()
        return _Options(pools, tuple(mask for mask in mixed if mask.bit_count() >= need.gpus))

    def _groups(self, by_model: Mapping[tuple[str, str], int], need: Need) -> tuple[tuple[int, ...], ...]:
        """The sets of GPUs, one of each node, of which a lease on several nodes may be cut; a tuple for each model."""
        models: dict[str, list[int]] = {}
        for (_, model), mask in by_model.items():
            if mask.bit_count() >= need.gpus // need.nodes:
                models.setdefault("" if self.mix_models else model, []).append(mask)
        return tuple(tuple(masks) for masks in models.values() if len(masks) >= need.nodes)

    def _spread(self, groups: tuple[tuple[int, ...], ...], free: int, need: Need) -> int:
        """The best GPUs on `need.nodes` nodes, equally many on each: on those that have the fewest free, first."""
        on_each = need.gpus // need.nodes
        for masks in groups:
            fitting = sorted((mask for mask in masks if (mask & free).bit_count() >= on_each), key=_num_bits(free))
            if len(fitting) >= need.nodes:
                return _union(tuple(self._best((mask,), free, on_each) for mask in fitting[: need.nodes]))
        return 0

    def _best(self, pools: tuple[int, ...], free: int, num_gpus: int) -> int:
        best, best_key = 0, None
        for pool in pools:
            places = [place for place in range(len(self.gpus)) if pool & free & (1 << place)]
            for members in self._candidates(places, num_gpus):
                key = (
                    -sum(self._links[a][b] for a, b in combinations(members, 2)),
                    max(self.gpus[place].memory_gb for place in members),
                    len(places) - num_gpus,
                    self.gpus[members[-1]].index - self.gpus[members[0]].index,
                    members,
                )
                if best_key is None or key < best_key:
                    best, best_key = sum(1 << place for place in members), key
        return best

    def _candidates(self, places: list[int], num_gpus: int) -> Iterator[tuple[int, ...]]:
        """Sets of `num_gpus` of these places (ascending) among which the best is."""
        if len(places) < num_gpus:
            return
        if len({self._links[a][b] for a, b in combinations(places, 2)}) <= 1:
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
            members.append(max(outside, key=lambda p: (sum(self._links[p][m] for m in members), -abs(p - seed), -p)))
        return tuple(sorted(members))


def _num_bits(free: int) -> Callable[[int], int]:
    return lambda mask: (mask & free).bit_count()


def _union(masks: tuple[int, ...]) -> int:
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
