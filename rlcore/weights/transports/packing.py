"""Named tensors in parcels: the layout is plain values, the bytes travel by a transport.

trainer: chunks ─▶ buffer ─▶ parcel ──question──▶ the target's process: open ─▶ views ─▶ target.write
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlcore.weights.target import NamedTensors

ALIGNMENT = 64
"""Bytes: every tensor begins at a multiple of it, which every type and every vector unit accepts."""


class Parcel(Protocol):
    """Tensors on their way to another process. It can be pickled."""

    def open(self, opened: dict[str, Any]) -> Mapping[str, Tensor]:
        """Return the tensors, in the target's process; they are valid until the question is answered.

        `opened` keeps what parcels have opened there: blocks of shared memory, process groups.
        """


class Transport(Protocol):
    """Carries named tensors to one target in another process."""

    def send(self, weights: NamedTensors, deliver: Callable[[Parcel], object]) -> None:
        """Send each tensor once; `deliver` lets the target write a parcel, and returns when it has."""


class Entry(NamedTuple):
    """One tensor of a buffer, in C order."""

    name: str
    dtype: str
    """As torch names it, without the module: "bfloat16"."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the first byte."""
    end: int
    """Offset after the last byte."""


def chunks(weights: NamedTensors, max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in their order, together up to `max_bytes`, and at least one at a time."""
    chunk: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in weights:
        if chunk and num_bytes + tensor.nbytes > max_bytes:
            yield chunk
            chunk, num_bytes = {}, 0
        chunk[name] = tensor
        num_bytes += tensor.nbytes
    if chunk:
        yield chunk


def layout_of(tensors: Mapping[str, Tensor]) -> tuple[Entry, ...]:
    """Return the entry of each tensor, one after the other."""
    entries, begin = [], 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), begin, begin + tensor.nbytes))
        begin += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(entries)


def num_bytes_of(layout: Iterable[Entry]) -> int:
    """Return the size of a buffer of this layout."""
    return max((entry.end for entry in layout), default=0)


def views(layout: Iterable[Entry], buffer: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a buffer, uint8 [bytes], as views of it."""
    return {
        entry.name: buffer[entry.begin : entry.end].view(getattr(torch, entry.dtype)).view(entry.shape)
        for entry in layout
    }


def fill(layout: Iterable[Entry], tensors: Mapping[str, Tensor], buffer: Tensor) -> None:
    """Copy tensors into a buffer, from whatever device they are on."""
    for name, view in views(layout, buffer).items():
        view.copy_(tensors[name].detach())
