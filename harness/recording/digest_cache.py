"""Cache of digests: those of values that were not written since they were digested.

torch counts the writes that it knows of. Those that go past it, through `.data` or a kernel of one's own, are looked
for in a sample of the words: they copy or scale whole tensors. What would be missed is a write to a few elements of a
large tensor, past torch. On a GPU the samples of all values of a hook are taken by the launch that digests the others.
"""

import sys
from collections.abc import Collection, Sequence
from ctypes import string_at
from typing import Any, NamedTuple

import torch

from harness.recording.recorder import Observation, look, look_and_sample
from harness.recording.sharded_digest import place
from harness.recording.tensors import MISSING, Digested, ends_at, on_host
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
    """On the host; that of a value on a GPU stands beside its mark."""


class _Known(NamedTuple):
    mark: _Mark
    digested: Digested
    sample: bytes
    """Of a value on a GPU."""


class DigestCache:
    """Remembers values by name, and returns the digest of unchanged ones. It holds no value."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, values: Sequence[tuple[str, torch.Tensor]], scope: Scope = Scope.LOGICAL) -> list[Observation]:
        """The same as `recorder.look`; of what is as it was, the digest is used again. Remembers all of them."""
        marks = _marks(values)
        known = {name: each for name in marks if (each := self._known.get(name)) and each.mark == marks[name]}
        fresh, samples = _look([(name, tensor) for name, tensor in values if name not in known], scope, values, marks)
        changed = {name for name, each in known.items() if samples.get(name, b"") != each.sample}
        if changed:  # by a write that torch does not count
            fresh += look([(name, tensor) for name, tensor in values if name in changed], scope)
        self._remember(fresh, marks, samples)
        by_name: dict[str, list[Observation]] = {}
        for seen in fresh:  # a sparse tensor gives two
            by_name.setdefault(seen.name.partition(" ")[0], []).append(seen)
        found: list[Observation] = []
        for name, tensor in values:
            if name in known and name not in changed:
                value, its_scope = place(tensor, scope)
                whole = value if isinstance(value, torch.Tensor) else None
                found.append(Observation(name, known[name].digested, its_scope, whole))
            else:
                found += by_name.pop(name.partition(" ")[0], [])
        return found

    def look_anew(
        self, values: Sequence[tuple[str, Any]], scope: Scope = Scope.LOGICAL, remembered: Collection[str] | None = None
    ) -> list[Observation]:
        """The same as `recorder.look`, and remember the values of these names; of all if None."""
        tensors = [(name, value) for name, value in values if isinstance(value, torch.Tensor)]
        marks = _marks([(name, tensor) for name, tensor in tensors if remembered is None or name in remembered])
        fresh, samples = _look(values, scope, tensors, marks)
        self._remember(fresh, marks, samples)
        return fresh

    def _remember(self, fresh: list[Observation], marks: dict[str, _Mark], samples: dict[str, bytes]) -> None:
        for seen in fresh:
            if seen.name in marks and seen.digested.dtype not in MISSING:
                self._known[seen.name] = _Known(marks[seen.name], seen.digested, samples.get(seen.name, b""))
            else:
                self._known.pop(seen.name, None)


def _look(
    values: Sequence[tuple[str, Any]],
    scope: Scope,
    tensors: Sequence[tuple[str, torch.Tensor]],
    marks: dict[str, _Mark],
) -> tuple[list[Observation], dict[str, bytes]]:
    """(what `values` are, by name the samples of all marked `tensors` on GPUs), with one wait."""
    sampled = {name: _memory(tensor) for name, tensor in tensors if name in marks}
    on_gpu = {name: local for name, local in sampled.items() if not on_host(local)}
    seen, found = look_and_sample(values, scope, list(on_gpu.values()))
    return seen, dict(zip(on_gpu, found, strict=True))


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the elements: of a DTensor, this rank's part."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        local: torch.Tensor = tensor._local_tensor
        return local
    return tensor


def _marks(values: Sequence[tuple[str, torch.Tensor]]) -> dict[str, _Mark]:
    return {name: mark for name, tensor in values if (mark := _mark(tensor)) is not None}


def _mark(tensor: torch.Tensor) -> _Mark | None:
    """None for a value that is not worth it, or whose writes nobody counts, or that has no memory."""
    local = _memory(tensor)
    num_bytes = local.numel() * local.element_size()
    if num_bytes < MIN_BYTES or tensor.is_inference() or local.is_inference() or local.layout is not torch.strided:
        return None
    if type(local).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl or local.is_meta:
        return None
    if not local.is_contiguous() or local.is_conj() or local.is_neg():
        return None
    if ends_at(local) > local.untyped_storage().nbytes():  # its memory was given back
        return None
    address = local.data_ptr()
    version = tensor._version if local is tensor else tensor._version + local._version
    if not on_host(local):
        return _Mark(address, num_bytes, version, b"")
    places = (address, address + num_bytes // 2, address + num_bytes - SAMPLE_BYTES)
    return _Mark(address, num_bytes, version, b"".join([string_at(at, SAMPLE_BYTES) for at in places]))
