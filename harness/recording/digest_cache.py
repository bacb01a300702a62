"""Cache of digests: those of values that were not written since they were digested.

torch counts the writes that it knows of. Those that go past it, through `.data` or a kernel of one's own, are looked
for in a sample of the words: they copy or scale whole tensors. What would be missed is a write to a few elements of a
large tensor, past torch. On a GPU every value is digested anew: it reads 1 GB in 0.3 ms, and nothing has to wait.
"""

import sys
from collections.abc import Sequence
from ctypes import string_at
from typing import Any, NamedTuple

import torch

from harness.bits.shard_sums import on_host
from harness.recording.recorder import Asked, Observation, look_at
from harness.recording.sharded_digest import place
from harness.recording.tensors import MISSING, Digested, ends_at
from harness.trace.chain import Scope

MIN_BYTES = 2**16
"""Below this, digesting is as fast as looking."""
SAMPLE_BYTES = 64


class _Mark(NamedTuple):
    """By what a value is known again."""

    address: int
    num_bytes: int
    version: int
    sample: bytes


class _Known(NamedTuple):
    mark: _Mark
    digested: Digested


DigestCache = dict[str, _Known]
"""Values by name; none of them is held."""


class Group(NamedTuple):
    """Values that are looked at together with others."""

    values: Sequence[tuple[str, Any]]
    scope: Scope = Scope.LOGICAL
    cache: DigestCache | None = None
    """Remembers them; None: they are digested and forgotten."""
    is_anew: bool = False
    """Whether they are digested although the cache knows them."""


class _Part(NamedTuple):
    """One value of a group."""

    group: Group
    name: str
    value: Any
    mark: _Mark | None
    """None where the digest is not remembered."""

    @property
    def known(self) -> _Known | None:
        """What the cache knows of the value, if it is as it was."""
        if self.mark is None or self.group.cache is None or self.group.is_anew:
            return None
        known = self.group.cache.get(self.name)
        return known if known is not None and known.mark == self.mark else None

    @property
    def asked(self) -> Asked:
        return Asked(self.name, self.value, self.group.scope)


def look_at_groups(groups: Sequence[Group]) -> list[list[Observation]]:
    """What the values of each group are."""
    parts = [
        _Part(group, name, value, None if group.cache is None else _mark(value))
        for group in groups
        for name, value in group.values
    ]
    known = [part.known for part in parts]
    fresh = iter(look_at([part.asked for part, each in zip(parts, known, strict=True) if each is None]))
    results = [
        _remembered(part, next(fresh)) if each is None else _again(part, each)
        for part, each in zip(parts, known, strict=True)
    ]
    rest = iter(results)
    return [[seen for _ in group.values for seen in next(rest)] for group in groups]


def _again(part: _Part, known: _Known) -> list[Observation]:
    value, scope = place(part.value, part.group.scope)
    return [Observation(part.name, known.digested, scope, value if isinstance(value, torch.Tensor) else None)]


def _remembered(part: _Part, seen: list[Observation]) -> list[Observation]:
    if (cache := part.group.cache) is not None:
        if part.mark is not None and seen[0].digested.dtype not in MISSING:
            cache[part.name] = _Known(part.mark, seen[0].digested)
        else:
            cache.pop(part.name, None)
    return seen


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the elements: of a DTensor, this rank's part."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        local: torch.Tensor = tensor._local_tensor
        return local
    return tensor


def _mark(tensor: Any) -> _Mark | None:
    """None for a value that is no tensor, or not worth it, or whose writes nobody counts, or that has no memory."""
    if not isinstance(tensor, torch.Tensor):
        return None
    local = _memory(tensor)
    num_bytes = local.numel() * local.element_size()
    if not on_host(local) or num_bytes < MIN_BYTES:
        return None
    if tensor.is_inference() or local.is_inference() or local.layout is not torch.strided:
        return None
    if type(local).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl or local.is_meta:
        return None
    if not local.is_contiguous() or local.is_conj() or local.is_neg():
        return None
    if ends_at(local) > local.untyped_storage().nbytes():  # its memory was given back
        return None
    address = local.data_ptr()
    version = tensor._version if local is tensor else tensor._version + local._version
    places = (address, address + num_bytes // 2, address + num_bytes - SAMPLE_BYTES)
    return _Mark(address, num_bytes, version, b"".join([string_at(at, SAMPLE_BYTES) for at in places]))
