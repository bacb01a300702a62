"""Cache of digests: those of values that were not written since they were digested.

torch counts the writes that it knows of. Those that go past it, through `.data`, are looked for in a sample: they copy
or scale whole tensors. What would be missed is a write to a few elements of a large tensor, past torch.
"""

from collections.abc import Sequence
from ctypes import string_at
from typing import NamedTuple

import torch

from harness.recording.recorder import Observation, look
from harness.recording.tensors import Digested
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


class DigestCache:
    """Remembers values by name, and returns the digest of unchanged ones. It holds no value."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[_Mark, Digested]] = {}

    def remember(self, seen: Observation) -> None:
        """A value that has just been digested."""
        mark = None if seen.tensor is None else _mark(seen.tensor)
        if mark is None:
            self._marks.pop(seen.name, None)
        else:
            self._marks[seen.name] = mark, seen.digested

    def look(self, values: Sequence[tuple[str, torch.Tensor]], scope: Scope = Scope.LOGICAL) -> list[Observation]:
        """The same as `recorder.look`; of what is as it was, the digest is used again. Remembers all of them."""
        known = {name: digest for name, tensor in values if (digest := self._known(name, tensor)) is not None}
        fresh = look([(name, tensor) for name, tensor in values if name not in known], scope)
        for seen in fresh:
            self.remember(seen)
        left = fresh[::-1]
        found: list[Observation] = []
        for name, tensor in values:
            if name in known:
                found.append(Observation(name, known[name], scope, tensor))
            while left and left[-1].name.partition(" ")[0] == name.partition(" ")[0] and name not in known:
                found.append(left.pop())  # a sparse tensor gives two
        return found

    def _known(self, name: str, tensor: torch.Tensor) -> Digested | None:
        mark, digested = self._marks.get(name, (None, None))
        return digested if mark is not None and _mark(tensor) == mark else None


def _mark(tensor: torch.Tensor) -> _Mark | None:
    num_bytes = tensor.nbytes
    if num_bytes < MIN_BYTES or not tensor.is_cpu or tensor.is_inference() or not tensor.is_contiguous():
        return None
    if not tensor.untyped_storage().nbytes():  # its memory was given back
        return None
    address = tensor.data_ptr()
    places = (address, address + num_bytes // 2, address + num_bytes - SAMPLE_BYTES)
    return _Mark(address, num_bytes, tensor._version, b"".join([string_at(at, SAMPLE_BYTES) for at in places]))
