"""Which tensors of an optimizer must agree, on which ranks, and which of them differ.

DistributedDataParallel      all ranks of its process group
reduced by all_reduce        the ranks of that group, once the program has reduced a parameter's gradient itself
DTensor (FSDP2, HSDP, TP)    the ranks of its mesh that hold the same shard
a shard of one rank alone    a single copy, which is compared with itself from one step to the next
everything else              unknown: ranks may differ on purpose, and nothing is compared

With parameters go the training flags and buffers of their module. A buffer counts from when it has been equal: batch
statistics are a rank's own.

torch counts the writes that it knows of: a single copy that was written is not compared. Programs also write past
torch, through `.data`: they do so on several ranks at once, and accidents happen on one. A tensor that changed on
several ranks in the same step is taken as written, and not watched any more.
"""

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from xxhash import xxh3_128_hexdigest

from harness.recording.names import ParameterNames, living_modules, unwrapped
from harness.recording.sentinel.sentinel_report import Difference, suspects_of
from harness.recording.sharded_digest import digest_placed
from harness.recording.tensors import strided_parts

WEIGHT, GRADIENT, MOMENT, BUFFER, FLAG = "weight", "gradient", "moment", "buffer", "training flag of"
Ranks = tuple[int, ...]


class Key(NamedTuple):
    """What a digest is of."""

    kind: str
    """weight, gradient, moment, buffer or training flag."""
    name: str
    replicas: Ranks
    """Ranks whose digests must be equal, in order."""


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


Table = Mapping[Key, str]
"""Digest of each tensor of a rank."""


class Replicas:
    """Knows the replicas of parameters; looks for modules once for each new set of parameters."""

    def __init__(self) -> None:
        self._names = ParameterNames()
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Ranks]] = {}
        """Ranks by the id of a parameter; none of a DTensor, whose mesh says it, and of one that is unknown."""
        self._reduced: list[tuple[int, int, Ranks]] = []
        """(address, elements, ranks) of the tensors that the program reduced since the last step."""
        self._unlike: set[str] = set()
        self._equal: set[str] = set()
        """Names of buffers that differed when they were compared first, and of those that did not."""

    def declare(self, parameters: Sequence[torch.Tensor], ranks: Ranks) -> None:
        """Have these parameters compared among these ranks, also without a wrapper."""
        self._known |= {id(each): (weakref.ref(each), ranks) for each in parameters}

    def note_reduced(self, tensor: torch.Tensor, ranks: Ranks) -> None:
        """The program has had a tensor reduced over these ranks."""
        self._reduced.append((tensor.untyped_storage().data_ptr(), tensor.numel(), ranks))

    def forget_reduced(self) -> None:
        """A step has ended."""
        self._reduced.clear()

    def _find_reduced(self, parameters: Sequence[torch.Tensor]) -> None:
        """Learn whose gradients were reduced, one by one or as one flat tensor of all."""
        unknown = [each for each in parameters if self._ranks(each) == () and not is_placed(each)]
        gradients = {id(each): each.grad for each in unknown if each.grad is not None}
        num_elements = sum(each.numel() for each in gradients.values())
        for address, size, ranks in self._reduced:
            for each in unknown:
                grad = gradients.get(id(each))
                if grad is not None and (size == num_elements or address == grad.untyped_storage().data_ptr()):
                    self._known[id(each)] = (weakref.ref(each), ranks)

    def admitted(self, copies: Sequence[Copy], found: Sequence[Difference]) -> list[Difference]:
        """Return the differences that count: those of buffers that have been equal. All ranks decide alike."""
        differing = {each.name for each in found if each.kind == BUFFER}
        self._unlike |= differing - self._equal
        self._equal |= {each.key.name for each in copies if each.key.kind == BUFFER} - differing
        return [each for each in found if each.kind != BUFFER or each.name not in self._unlike]

    def copies(self, optimizer: Optimizer, kinds: Sequence[str]) -> list[Copy]:
        """Return the tensors of an optimizer that are to be compared or watched, in the order of its parameters."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._names.assign(parameters)
        if unknown := [each for each in parameters if self._ranks(each) is None]:
            wrapped = _wrapped_parameters()
            self._known |= {id(each): (weakref.ref(each), wrapped.get(id(each), ())) for each in unknown}
        self._find_reduced(parameters)
        of_modules = [
            copy
            for _, root in (self._names.trained() if FLAG in kinds else ())
            for domain in [self._domain(root)]
            for kind, name, tensor in _parts(root)
            if name not in self._unlike
            for copy in _copies(kind, name, tensor, tensor, domain)
        ]
        return of_modules + [
            copy
            for parameter in parameters
            for kind, name, tensor in _tensors(optimizer, parameter, self._names.name(parameter) or "", kinds)
            for copy in _copies(kind, name, tensor, parameter, self._ranks(parameter) or ())
        ]

    def _domain(self, root: torch.nn.Module) -> Ranks:
        """The ranks that hold copies of a module's parameters; none if they are not the same for all."""
        found = {
            _ranks_of(each.device_mesh) if is_placed(each) else self._ranks(each) or ()  # type: ignore[attr-defined]
            for each in root.parameters()
            if each.requires_grad
        }
        return next(iter(found)) if len(found) == 1 else ()

    def _ranks(self, parameter: torch.Tensor) -> Ranks | None:
        reference, ranks = self._known.get(id(parameter), (None, ()))
        return ranks if reference is not None and reference() is parameter else None


def _wrapped_parameters() -> dict[int, Ranks]:
    """Ranks of each parameter that a DistributedDataParallel averages the gradients of, by its id."""
    found: dict[int, Ranks] = {}
    for module in living_modules():
        if isinstance(module, DistributedDataParallel):
            ranks = tuple(sorted(distributed.get_process_group_ranks(module.process_group)))
            for name, parameter in module.module.named_parameters():
                if name not in module.parameters_to_ignore:
                    found[id(parameter)] = ranks
    return found


def _parts(root: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """The training flags and buffers below a module; without statistics that each rank takes of its own batch."""
    for dotted, module in root.named_modules():
        prefix = unwrapped(f"{dotted}.")
        yield FLAG, prefix.removesuffix(".") or type(module).__name__, torch.tensor(module.training)
        has_statistics = isinstance(module, _NormBase) and not isinstance(module, torch.nn.SyncBatchNorm)
        for key, buffer in module.named_buffers(recurse=False) if not has_statistics else ():
            yield BUFFER, f"{prefix}{key}".removeprefix("."), buffer


def _tensors(
    optimizer: Optimizer, parameter: torch.Tensor, name: str, kinds: Sequence[str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    if WEIGHT in kinds:
        yield WEIGHT, name, parameter
    if GRADIENT in kinds and parameter.grad is not None:
        yield GRADIENT, name, parameter.grad
    for key, value in optimizer.state.get(parameter, {}).items() if MOMENT in kinds else ():
        if isinstance(value, torch.Tensor | int | float):
            yield MOMENT, f"{name} {key}", torch.as_tensor(value)


def _copies(kind: str, name: str, tensor: torch.Tensor, parameter: torch.Tensor, ranks: Ranks) -> list[Copy]:
    """What is held of a tensor; nothing where it is not known who holds it too."""
    domain = replicas = ranks
    placed: Any = next((each for each in (tensor, parameter) if is_placed(each)), None)
    local: torch.Tensor = placed.to_local() if placed is tensor else tensor  # type: ignore[attr-defined]
    if placed is not None:
        domain = replicas = _ranks_of(placed.device_mesh)
        if placed is tensor or tensor.numel() != 1:  # else the number of steps, beside moments that are placed
            replicas = _ranks_of(placed.device_mesh, placed.placements)
    if not replicas or local.is_meta or (local.nbytes and not local.untyped_storage().nbytes()):
        return []
    return [Copy(Key(kind, name, replicas), domain, tensor, local)]


def is_placed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor; a program that has none does not import their module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


@cache
def _ranks_of(mesh: Any, placements: Sequence[Any] | None = None) -> Ranks:
    """All ranks of a mesh; with placements, those that hold the same elements as this one, none outside of the mesh."""
    at = mesh.get_coordinate()
    if placements is not None and at is None:
        return ()
    index = tuple(slice(None) if each.is_replicate() else at[dim] for dim, each in enumerate(placements or ()))
    return tuple(sorted(mesh.mesh[index].flatten().tolist()))


# --------------------------------------------------------------------------------------------------------- comparison


def digests_of(copies: Sequence[Copy]) -> dict[Key, str]:
    """Return the digest of what this rank holds of each tensor, with its dtype and shape."""
    parts = [(copy.key, suffix, part) for copy in copies for suffix, part in strided_parts(copy.local)]
    found: dict[Key, str] = {}
    for (key, suffix, _), seen in zip(parts, digest_placed([part for *_, part in parts]), strict=True):
        text = f"{seen.dtype} {list(seen.shape)} {seen.algorithm} {bytes(seen.digest).hex()}"
        found[key._replace(name=key.name + suffix)] = text
    return found


def summarize(table: Table) -> dict[Ranks, str]:
    """Return one digest for each set of replicas; single copies have none.

    Names, kinds and replica sets are part of it, in order: two equal changes, or two tensors that were exchanged, do
    not cancel.
    """
    texts: dict[Ranks, list[str]] = {}
    for key, digest in table.items():
        if len(key.replicas) > 1:
            texts.setdefault(key.replicas, []).append(f"{key.kind} {len(key.name)} {key.name} {digest}\n")
    return {replicas: xxh3_128_hexdigest("".join(each).encode()) for replicas, each in texts.items()}


def is_equal(summaries: Mapping[int, Mapping[Ranks, str]]) -> bool:
    """Return whether all replicas have equal digests, from the summaries by rank."""
    pairs = [pair for summary in summaries.values() for pair in summary.items()]
    return all(
        summaries[rank].get(replicas) == digest for replicas, digest in pairs for rank in replicas if rank in summaries
    )


def differences(tables: Mapping[int, Table]) -> list[Difference]:
    """Return the tensors of which replicas hold different bits, in the order of the first rank that has them.

    A rank without a tensor, such as one whose optimizer keeps only a part of the moments, has no say about it.
    """
    found = []
    for key in dict.fromkeys(key for table in tables.values() for key in table if len(key.replicas) > 1):
        digests = {rank: tables[rank][key] for rank in key.replicas if rank in tables and key in tables[rank]}
        if len(set(digests.values())) > 1:
            found.append(Difference(key.kind, key.name, digests, suspects_of(digests.items())))
    return found


# ------------------------------------------------------------------------------------------------------ single copies


class Change(NamedTuple):
    """A single copy that changed without a write."""

    kind: str
    name: str
    since_step: int
    """Step after which it was digested."""
    after: str
    """Digest before the next one."""


class Windows:
    """Watches single copies from the end of each step to the beginning of the next one."""

    def __init__(self) -> None:
        self._seen: dict[Key, tuple[int, object, str]] = {}
        """Step after which it was digested, what it is known by, digest."""
        self.held: dict[Ranks, list[Change]] = {}
        """What changed, by domain, until its ranks compare."""
        self._written: set[tuple[str, str]] = set()
        """(kind, name) of what programs write past torch."""

    def note(self, step: int, copies: Sequence[Copy]) -> None:
        """Digest single copies after a step."""
        watched = [each for each in copies if each.is_single and each.key[:2] not in self._written]
        marks = {each.key: mark for each in watched if (mark := _mark(each)) is not None}
        digests = digests_of([each for each in watched if each.key in marks])
        self._seen = {key: (step, mark, digests[key]) for key, mark in marks.items()}

    def look(self, copies: Sequence[Copy]) -> None:
        """Digest them again before the next step, and hold what changed."""
        unwritten = [each for each in copies if each.key in self._seen and _mark(each) == self._seen[each.key][1]]
        digests = digests_of(unwritten)
        for each in unwritten:
            step, _, before = self._seen[each.key]
            if (now := digests[each.key]) != before:
                self.held.setdefault(each.domain, []).append(Change(each.key.kind, each.key.name, step, now))

    def ignore(self, changes: Sequence[Change]) -> None:
        """Stop watching what the program writes itself."""
        self._written |= {each[:2] for each in changes}


def split_changes(by_rank: Mapping[int, Sequence[Change]]) -> tuple[dict[int, list[Change]], list[Change]]:
    """Return (what changed on one rank alone, by rank; what changed on several in the same step)."""
    where = [each[:3] for changes in by_rank.values() for each in changes]
    written = {each[:2] for each in where if where.count(each) > 1}
    alone = {rank: [each for each in changes if each[:2] not in written] for rank, changes in by_rank.items()}
    shared = [each for changes in by_rank.values() for each in changes if each[:2] in written]
    return {rank: changes for rank, changes in alone.items() if changes}, shared


def _mark(copy: Copy) -> object:
    """By what a copy is known again that was not written; None where torch does not count writes."""
    if copy.tensor.is_inference() or copy.local.is_inference() or copy.local.layout is not torch.strided:
        return None
    return copy.local.data_ptr(), copy.tensor._version, copy.local._version
