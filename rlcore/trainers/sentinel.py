"""A sentinel against silent corruption: ranks that must hold equal bits compare digests while they train.

    before weights move   weights, gradients, moments of all replicas ─▶ different: ReplicaError
    after                 weights, moments                            ─▶ different: ReplicaError
    between two steps     a shard without a replica is compared with itself

Every rank of the grid raises the same error. Digests are read only: no bit of the run depends on the sentinel.
"""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from harness.bits.tensor_digests import combined_digest, tensor_digests
from rlcore.errors import ReplicaError
from rlcore.trainers.gradients import local_part
from rlcore.trainers.ranks import RankGrid

State = Mapping[str, Tensor]
Digests = Mapping[str, str]
"""Of bits, type and shape, by name: two equal changes do not cancel, nor two tensors that were exchanged."""


class ReplicaSentinel:
    """Compares the replicas of a trainer at every N-th update; single copies at every update."""

    def __init__(self, trainer: str, grid: RankGrid, every: int) -> None:
        self._trainer, self._grid, self._every = trainer, grid, every
        self._num_updates = 0
        self._seen: dict[str, tuple[tuple[int, int, int], str]] = {}
        """Shards without a replica, after the last update: by what a write is noticed, and their digests."""
        self._changed: set[str] = set()
        """Shards that have changed without a write."""

    def before(self, state: State, gradients: State) -> None:
        """Compare before weights move; raises ReplicaError on every rank."""
        seen = {name: mark for name, (mark, _) in self._seen.items() if name in state}
        unwritten = {name: state[name] for name, mark in seen.items() if mark == _mark(state[name])}
        found = _digests(unwritten)
        self._changed |= {name for name, digest in found.items() if digest != self._seen[name][1]}
        self._compare({**state, **{f"gradient of {name}": each for name, each in gradients.items()}}, "before")

    def after(self, state: State) -> None:
        """Compare after weights have moved; raises ReplicaError on every rank."""
        self._compare(state, "after")
        if self._grid.replicate.size == 1:
            digests = _digests(state)
            self._seen = {name: (_mark(tensor), digests[name]) for name, tensor in state.items()}
        self._num_updates += 1

    def _compare(self, state: State, when: str) -> None:
        """Compare this rank with its replicas, if it is time; all ranks of the grid learn what any of them found."""
        if self._num_updates % self._every:
            return
        own, replicas = _digests(state), self._grid.replicate
        found: dict[str, tuple[int, ...]] = {}
        if len(set(replicas.gather_objects(combined_digest(own)))) > 1:
            found = differences(replicas.gather_objects(own))
        is_suspect = any(replicas.rank in suspects for suspects in found.values())
        names = sorted(self._changed) or (list(found) if is_suspect else [])
        reports: list[tuple[list[str], str]] = self._grid.world.gather_objects((names, platform.node()))
        wrong = {rank: report for rank, report in enumerate(reports) if report[0]}
        if not wrong:
            return
        names = list(dict.fromkeys(name for names, _ in wrong.values() for name in names))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        hosts = ", ".join(f"rank {rank} on {host}" for rank, (_, host) in wrong.items())
        raise ReplicaError(
            f"{names[0]}{more} of the {self._trainer} has other bits on {hosts}, update {self._num_updates},"
            f" {when} its weights moved",
            ranks=tuple(wrong),
            names=tuple(names),
        )


def _digests(state: State) -> dict[str, str]:
    return tensor_digests({name: local_part(tensor) for name, tensor in state.items()})


def _mark(tensor: Tensor) -> tuple[int, int, int]:
    local = local_part(tensor.detach())
    return local.data_ptr(), tensor._version, local._version


def differences(digests: Sequence[Digests]) -> dict[str, tuple[int, ...]]:
    """Return the tensors that differ, from the digests of each replica, and the replicas that are suspected of each.

    These are the replicas that differ from more than half, or all of them if no digest has a majority. A replica may
    lack a tensor.
    """
    found = {}
    for name in dict.fromkeys(name for each in digests for name in each):
        own = [each.get(name, "") for each in digests]
        digest, number = Counter(own).most_common(1)[0]
        has_majority = 2 * number > len(own)
        if number < len(own):
            found[name] = tuple(at for at, each in enumerate(own) if not has_majority or each != digest)
    return found
