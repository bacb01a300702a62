"""Which tensors of an optimizer must agree, and on which ranks: from DistributedDataParallel and DTensor placements.

DistributedDataParallel      all ranks of its process group
DTensor (FSDP2, HSDP, TP)    the ranks of its mesh that hold the same shard; one rank: a single copy
everything else              unknown: ranks may differ on purpose, and nothing is compared
"""

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from harness.recording.names import living_modules, outermost, owners_of
from harness.recording.sentinel.comparison import Key
from harness.recording.sharded_digest import digest_placed
from harness.recording.tensors import strided_parts

WEIGHT, GRADIENT, MOMENT = "weight", "gradient", "moment"
Ranks = tuple[int, ...]


class Copy(NamedTuple):
    """What this rank holds of one tensor."""

    key: Key
    domain: Ranks
    """Ranks that compare it together: of the process group or the mesh."""
    tensor: torch.Tensor
    """As the program has it."""
    local: torch.Tensor
    """Memory of this rank."""

    @property
    def is_single(self) -> bool:
        """Return whether no other rank holds the same elements."""
        return len(self.key.replicas) == 1 < len(self.domain)


class _Known(NamedTuple):
    parameter: weakref.ref[torch.Tensor]
    name: str
    ranks: Ranks
    """Of the process group; empty of a DTensor, whose mesh says it, and of a parameter of which nothing is known."""


class Replicas:
    """Knows the replicas of parameters; looks for modules once for each new set of parameters."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._declared: dict[int, tuple[weakref.ref[torch.Tensor], Ranks]] = {}

    def declare(self, parameters: Sequence[torch.Tensor], ranks: Ranks) -> None:
        """Have these parameters compared among these ranks, also without a wrapper."""
        for each in parameters:
            self._declared[id(each)] = weakref.ref(each), ranks
            self._known.pop(id(each), None)

    def copies(self, optimizer: Optimizer, kinds: Sequence[str]) -> list[Copy]:
        """Return the tensors of an optimizer that are to be compared or watched, in the order of its parameters."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._learn(parameters)
        found = []
        for parameter in parameters:
            known = self._known[id(parameter)]
            for kind, name, tensor in _tensors(optimizer, parameter, known.name, kinds):
                found += _copies(kind, name, tensor, parameter, known.ranks)
        return found

    def _learn(self, parameters: Sequence[torch.Tensor]) -> None:
        unknown = [each for each in parameters if not self._is_known(each)]
        if not unknown:
            return
        modules = living_modules()
        owners, wrapped = owners_of(unknown, outermost(modules)), _wrapped_parameters(modules)
        names: dict[str, int] = {}
        for index, parameter in enumerate(parameters):
            owner = owners.get(id(parameter))
            dotted = owner.dotted if owner else f"parameter{index}"
            number = names[dotted] = names.get(dotted, 0) + 1
            if not self._is_known(parameter):
                name = dotted if number == 1 else f"{dotted}#{number}"
                ranks = self._declared_ranks(parameter) or wrapped.get(id(parameter), ())
                self._known[id(parameter)] = _Known(weakref.ref(parameter), name, ranks)

    def _is_known(self, parameter: torch.Tensor) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known.parameter() is parameter

    def _declared_ranks(self, parameter: torch.Tensor) -> Ranks:
        reference, ranks = self._declared.get(id(parameter), (None, ()))
        return ranks if reference is not None and reference() is parameter else ()


def digests_of(copies: Sequence[Copy]) -> dict[Key, str]:
    """Return the digest of what this rank holds of each tensor, with its dtype and shape."""
    parts = [(copy.key, suffix, part) for copy in copies for suffix, part in strided_parts(copy.local)]
    found: dict[Key, str] = {}
    for (key, suffix, _), seen in zip(parts, digest_placed([part for *_, part in parts]), strict=True):
        text = f"{seen.dtype} {list(seen.shape)} {seen.algorithm} {seen.digest.hex()}"
        found[key._replace(name=key.name + suffix)] = text
    return found


def _wrapped_parameters(modules: Sequence[nn.Module]) -> dict[int, Ranks]:
    """Ranks of each parameter that a DistributedDataParallel averages the gradients of, by its id."""
    found: dict[int, Ranks] = {}
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            ranks = tuple(sorted(distributed.get_process_group_ranks(module.process_group)))
            for name, parameter in module.module.named_parameters():
                if name not in module.parameters_to_ignore:
                    found[id(parameter)] = ranks
    return found


def _tensors(
    optimizer: Optimizer, parameter: torch.Tensor, name: str, kinds: Sequence[str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    if WEIGHT in kinds:
        yield WEIGHT, name, parameter
    if GRADIENT in kinds and parameter.grad is not None:
        yield GRADIENT, name, parameter.grad
    if MOMENT in kinds:
        state: Mapping[str, Any] = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield MOMENT, f"{name} {key}", value
            elif isinstance(value, int | float):
                yield MOMENT, f"{name} {key}", torch.tensor(value)


def _copies(kind: str, name: str, tensor: torch.Tensor, parameter: torch.Tensor, ranks: Ranks) -> list[Copy]:
    """What is held of a tensor; nothing where it is not known who holds it too."""
    if _is_placed(tensor):
        domain, replicas = _mesh_ranks(tensor), _replicas(tensor)
        local = tensor.to_local()  # type: ignore[attr-defined]  # a DTensor
    elif _is_placed(parameter):  # such as the number of steps, beside moments that are placed
        domain = _mesh_ranks(parameter)
        replicas, local = domain if tensor.numel() == 1 else _replicas(parameter), tensor
    else:
        domain = replicas = ranks
        local = tensor
    if not replicas or local.is_meta or (local.nbytes and not local.untyped_storage().nbytes()):
        return []
    return [Copy(Key(kind, name, replicas), domain, tensor, local)]


def _is_placed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor; a program that has none does not import their module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _mesh_ranks(tensor: Any) -> Ranks:
    return _ranks_of_mesh(tensor.device_mesh)


def _replicas(tensor: Any) -> Ranks:
    """Ranks that hold the same elements as this one; empty outside of the mesh."""
    return _ranks_of_shard(tensor.device_mesh, tensor.placements)


@cache
def _ranks_of_mesh(mesh: Any) -> Ranks:
    return tuple(sorted(mesh.mesh.flatten().tolist()))


@cache
def _ranks_of_shard(mesh: Any, placements: Sequence[Any]) -> Ranks:
    at = mesh.get_coordinate()
    if at is None:
        return ()
    index = tuple(slice(None) if each.is_replicate() else at[dim] for dim, each in enumerate(placements))
    return tuple(sorted(mesh.mesh[index].flatten().tolist()))
