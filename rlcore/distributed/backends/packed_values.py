"""Values as bytes and tensors: what travels between the processes of a group.

    pack(value) ─▶ PackedValue(content, tensors) ── tensors by a backend's own way ──▶ unpack(content, tensors)

Large tensors are kept apart, so that they travel once and by shared memory. Small ones go with the bytes; of a view,
its elements alone.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, UntypedStorage
from torch.storage import TypedStorage

MIN_BYTES = 64 << 10
"""Size from which a tensor is kept apart: below, its bytes are cheaper in the message."""


@dataclass(frozen=True, slots=True)
class PackedValue:
    """A value that was packed."""

    content: bytes
    tensors: Mapping[str, Tensor]
    """Large tensors of the CPU, by the names they have in the content."""


def pack(value: object) -> PackedValue:
    """Return a value as bytes and large tensors. Raises what pickle raises."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    return PackedValue(stream.getvalue(), pickler.tensors)


def unpack(content: bytes, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value again, with these tensors in it."""
    return _Unpickler(io.BytesIO(content), tensors).load()


class _Pickler(pickle.Pickler):
    """Keeps large tensors apart, and copies the elements alone of small ones that are views."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        """Name a large tensor; the same object has one name."""
        if not _is_plain(value) or value.nbytes < MIN_BYTES:
            return None
        name = self._names.setdefault(id(value), str(len(self._names)))
        self.tensors[name] = value
        return name

    def reducer_override(self, value: Any) -> Any:
        """Pickle a tensor by its elements, without the rest of its storage."""
        if not isinstance(value, Tensor | UntypedStorage | TypedStorage):
            return NotImplemented
        if _is_plain(value):
            flat = value.reshape(-1).view(torch.uint8)
            return _small, (flat.numpy().tobytes(), value.dtype, tuple(value.shape))
        return value.__reduce_ex__(2)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, name: str) -> Tensor:
        """Return the tensor of a name."""
        return self._tensors[name]


def _small(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of these bytes."""
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).view(shape)


def _is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor that consists of its elements: dense, on the CPU, without gradient or subclass."""
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )
