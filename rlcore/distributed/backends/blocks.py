"""Messages between the processes of a group: large tensors in memory without a name, the rest pickled.

    encode(value) ─▶ Message(pickled, Block) ── pipe: bytes and a file descriptor ──▶ value with tensors of its own

A block is filled once and sent to any number of processes. Each maps it privately: a page is copied when the process
writes to it, so no process sees what another one does. The size of /dev/shm does not matter, and nothing is left when
processes are killed. Tensors on GPUs travel as torch.multiprocessing sends them.
"""

import io
import mmap
import os
import pickle
import weakref
from dataclasses import dataclass
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
from torch import Tensor

from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views

MIN_BYTES = 64 << 10
"""Size from which a tensor goes into a block: below, its bytes are cheaper in the pipe."""


class Block:
    """Tensors in shared memory that only descriptors lead to."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        """Copy tensors into a new block."""
        self.layout = layout_of(tensors)
        self.descriptor = os.memfd_create("rlcore-call")
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, num_bytes_of(self.layout))
        with mmap.mmap(self.descriptor, 0) as mapped:
            buffer = torch.frombuffer(mapped, dtype=torch.uint8)
            fill(self.layout, tensors, buffer)
            del buffer

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the descriptor; once for each pickle, as multiprocessing does it."""
        return _mapped, (DupFd(self.descriptor), self.layout)


@dataclass(frozen=True, slots=True)
class Message:
    """A value for other processes; it is pickled once for each that receives it."""

    content: bytes
    block: Any
    """A Block where it is sent, and its tensors by name where it arrives; None if no tensor is large."""

    def decode(self) -> Any:
        """Return the value."""
        return _Unpickler(io.BytesIO(self.content), self.block or {}).load()


def encode(value: object) -> Message:
    """Return a value as a message. Raises what pickle raises."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    return Message(stream.getvalue(), Block(pickler.tensors) if pickler.tensors else None)


class _Pickler(ForkingPickler):
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
        """Pickle a small tensor by its elements, where torch would make memory shared."""
        if not _is_plain(value):
            is_here = isinstance(value, Tensor) and value.device.type == "cpu"
            return _reduced(value) if is_here else NotImplemented
        return _reduced(value.clone())


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: dict[str, Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, name: str) -> Tensor:
        """Return the tensor of a name."""
        return self._tensors[name]


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor that consists of its elements: dense, on the CPU, without gradient or subclass."""
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )


def _reduced(tensor: Tensor) -> Any:
    return tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]


def _mapped(descriptor: Any, layout: tuple[Entry, ...]) -> dict[str, Tensor]:
    """Return the tensors of a block, mapped privately."""
    received = descriptor.detach()
    try:
        mapped = mmap.mmap(received, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(received)
    return views(layout, torch.frombuffer(mapped, dtype=torch.uint8))
