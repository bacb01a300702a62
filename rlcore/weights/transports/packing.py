"""Named tensors as one run of bytes, and back: the layout is plain values, the bytes travel by a transport."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes: every tensor begins at a multiple of it, which every type and every vector unit accepts."""


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
