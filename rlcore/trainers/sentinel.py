"""A sentinel against silent corruption: ranks that must hold equal bits compare digests while they train.

    WeightsMove    weights, gradients, moments of all replicas ─▶ different: ReplicaError, before the weights move
    WeightsMoved   weights, moments                            ─▶ different: ReplicaError
    between two    a shard without a replica is compared with itself

Every rank of the grid raises the same error. Digests are read only: no bit of the run depends on the sentinel.
"""

import platform
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from harness.bits.tensor_digests import combined_digest, tensor_digests
from rlcore.checks.replicas import ReplicaDifference, differences, suspects_of
from rlcore.errors import ReplicaError
from rlcore.observability.events import Event, GradientsReduced, WeightsMove, WeightsMoved
from rlcore.observability.observers import Observer
from rlcore.trainers.local_parts import local_part
from rlcore.trainers.rank_grid import RankGrid


class _Seen(NamedTuple):
    """A shard after a step: by what a write is noticed, and its digest."""

    mark: tuple[int, int, int]
    digest: str


class ReplicaSentinel(Observer):
    """Compares the replicas of a grid at every N-th update of each trainer; single copies at every update."""

    def __init__(self, grid: RankGrid, every: int) -> None:
        self._grid, self._every = grid, every
        self._trainer = ""
        self._names: dict[int, str] = {}
        """Of parameters, by the id of their gradient in the present update."""
        self._num_updates: dict[str, int] = {}
        self._seen: dict[str, dict[str, _Seen]] = {}
        """By trainer and name, after its last update."""
        self._changed: dict[str, str] = {}
        """Name -> digest of the present update's shards that changed without a write."""

    def observe(self, event: Event) -> None:
        """Compare before and after weights move; raises ReplicaError on every rank."""
        match event:
            case GradientsReduced(trainer, gradients):
                self._trainer = trainer
                self._names = {id(gradient): name for name, gradient in gradients.items()}
            case WeightsMove(optimizer):
                self._look(optimizer)
                if self._is_due():
                    self._compare(dict(self._tensors(optimizer, has_gradients=True)), "before its weights moved")
            case WeightsMoved(trainer, model, optimizer):
                names = {id(parameter): name for name, parameter in model.named_parameters()}
                tensors = dict(_tensors(optimizer, names))
                if self._is_due():
                    self._compare(tensors, "after its weights moved")
                if self._grid.shard.size > 1 and self._grid.replicate.size == 1:
                    digests = tensor_digests({name: local_part(tensor) for name, tensor in tensors.items()})
                    self._seen[trainer] = {
                        name: _Seen(_mark(tensor), digests[name]) for name, tensor in tensors.items()
                    }
                self._num_updates[trainer] = self._num_updates.get(trainer, 0) + 1

    def _is_due(self) -> bool:
        return self._num_updates.get(self._trainer, 0) % self._every == 0

    def _tensors(self, optimizer: torch.optim.Optimizer, *, has_gradients: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield what an optimizer is about to move, by the names of its gradients."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {id(parameter): self._names.get(id(parameter.grad), "") for parameter in parameters}
        yield from _tensors(optimizer, names)
        if has_gradients:
            for parameter in parameters:
                if parameter.grad is not None:
                    yield f"gradient of {names[id(parameter)]}", parameter.grad

    def _look(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare shards with what they were after the last update, unless they were written since."""
        seen = self._seen.get(self._trainer, {})
        unwritten = {
            name: local_part(tensor)
            for name, tensor in self._tensors(optimizer, has_gradients=False)
            if name in seen and seen[name].mark == _mark(tensor)
        }
        found = tensor_digests(unwritten)
        self._changed |= {name: seen[name].digest for name in unwritten if found[name] != seen[name].digest}

    def _compare(self, tensors: Mapping[str, Tensor], when: str) -> None:
        """Compare this rank with its replicas; all ranks of the grid learn what any of them found."""
        own = tensor_digests({name: local_part(tensor) for name, tensor in tensors.items()})
        replicas = self._grid.replicate if self._grid.shard.size > 1 else self._grid.world
        combined = replicas.gather_objects(combined_digest(own))
        found: list[ReplicaDifference] = []
        if len(set(combined)) > 1:
            found = differences(replicas.gather_objects(own))
        is_suspect = replicas.rank in suspects_of(found)
        report = (sorted(self._changed), [each.name for each in found] if is_suspect else [], platform.node())
        self._changed = {}
        reports = self._grid.world.gather_objects(report)
        if any(changed or differing for changed, differing, _ in reports):
            raise self._error(reports, when)

    def _error(self, reports: list[tuple[list[str], list[str], str]], when: str) -> ReplicaError:
        named = {rank: (changed or differing) for rank, (changed, differing, _) in enumerate(reports)}
        ranks = tuple(rank for rank, names in named.items() if names)
        names = tuple(dict.fromkeys(name for rank in ranks for name in named[rank]))
        hosts = ", ".join(f"rank {rank} on {reports[rank][2]}" for rank in ranks)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        update = self._num_updates.get(self._trainer, 0)
        return ReplicaError(
            f"{names[0]}{more} of the {self._trainer} has other bits on {hosts}, update {update}, {when}",
            ranks=ranks,
            names=names,
        )


def sentinels(grid: RankGrid | None, every: int) -> tuple[ReplicaSentinel, ...]:
    """Return the sentinel of a rank: none in a process without others, or if ranks are never compared."""
    return () if grid is None or not every else (ReplicaSentinel(grid, every),)


def _tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, weight) and (name, moment) of each parameter of an optimizer; `names` are by id."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            yield name, parameter
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {name}", value


def _mark(tensor: Tensor) -> tuple[int, int, int]:
    local = local_part(tensor.detach())
    return local.data_ptr(), tensor._version, local._version
