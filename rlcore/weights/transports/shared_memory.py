"""The transport to another process of this machine: chunks through one block of memory that both have mapped.

    fill the block ─▶ question: write it ─▶ the target copies ─▶ answer ─▶ fill the block again

The answer is the handshake: the block is not touched before it. The block belongs to the trainer's process and has no
name in any file system, so nothing is left when processes are killed, and the size of /dev/shm does not matter.
"""

import mmap
import os
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError
from rlcore.weights.target import NamedTensors
from rlcore.weights.transports.packing import Entry, Parcel, chunks, fill, layout_of, num_bytes_of, views


def _mapped(descriptor: int) -> Tensor:
    """Map a block: uint8 [bytes], unmapped with the last tensor of it."""
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class SharedChunk:
    """Tensors in the trainer's block."""

    path: str
    """The block's descriptor, as other processes reach it."""
    name: str
    """Name of the block, which no other block has."""
    layout: tuple[Entry, ...]

    def open(self, opened: dict[str, Any]) -> Mapping[str, Tensor]:
        """As `Parcel.open`; raises InvalidValueError where the trainer's memory cannot be reached."""
        if opened.get("block") != self.name:
            opened |= {"block": self.name, "buffer": self._map()}
        return views(self.layout, opened["buffer"])

    def _map(self) -> Tensor:
        try:
            if self.name not in os.readlink(self.path):
                raise OSError("it is not the block of the trainer")
            descriptor = os.open(self.path, os.O_RDWR)
        except OSError as error:
            raise InvalidValueError(
                f"weights in the memory of another process: {self.path}: {error.strerror or error}",
                legal="two processes of one machine, one user and one PID namespace",
                remedy="let RemoteTarget send by ProcessGroup; of a run: --set sampler.name=torch",
            ) from error
        try:
            return _mapped(descriptor)
        finally:
            os.close(descriptor)


class SharedMemory:
    """Sends to a process of this machine which runs as the same user and sees the same processes."""

    def __init__(self, max_chunk_bytes: int = 64 << 20) -> None:
        """Send through a block of this size; it grows to the size of a tensor that is larger."""
        self._max_chunk_bytes, self._name, self._path = max_chunk_bytes, "", ""
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._close: Callable[[], object] = lambda: None

    def send(self, weights: NamedTensors, deliver: Callable[[Parcel], object]) -> None:
        """As `Transport.send`."""
        for chunk in chunks(weights, self._max_chunk_bytes):
            layout = layout_of(chunk)
            if self._buffer.numel() < num_bytes_of(layout):
                self._allocate(num_bytes_of(layout))
            fill(layout, chunk, self._buffer)
            deliver(SharedChunk(self._path, self._name, layout))

    def _allocate(self, num_bytes: int) -> None:
        self._close()
        self._name = f"rlcore-weights-{uuid.uuid4().hex}"
        descriptor = os.memfd_create(self._name)
        os.ftruncate(descriptor, max(num_bytes, self._max_chunk_bytes))
        self._buffer, self._path = _mapped(descriptor), f"/proc/{os.getpid()}/fd/{descriptor}"
        self._close = weakref.finalize(self, os.close, descriptor)
