"""The transport to another process of this machine: chunks through one block of memory that both have mapped.

    fill the block ─▶ question: write it ─▶ the target copies ─▶ answer ─▶ fill the block again

The answer is the handshake: the block is not touched before it. The block belongs to the trainer's process and has no
name in any file system, so nothing is left when processes are killed, and the size of /dev/shm does not matter.
"""

import mmap
import os
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from rlcore.weights.transports.in_process import chunks
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views
from rlcore.weights.transports.parcels import Attachments, parcel_target


class _Mapping:
    """A block of memory, mapped here."""

    def __init__(self, name: str, descriptor: int) -> None:
        """Map a block, and take over the descriptor."""
        self.name, self.descriptor = name, descriptor
        self._end = weakref.finalize(self, os.close, descriptor)
        self._map = mmap.mmap(descriptor, 0)
        self.buffer = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Forget it; it is unmapped when the last tensor of it is gone."""
        del self.buffer, self._map
        self._end()


@dataclass(frozen=True, slots=True)
class SharedChunk:
    """Tensors in the trainer's block."""

    process: int
    descriptor: int
    transport: str
    """Name of the transport: its last block takes the memory of the one before."""
    name: str
    """Name of the block, which no other block has."""
    layout: tuple[Entry, ...]

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`; raises InvalidValueError where the trainer's memory cannot be reached."""
        found = attachments.opened.get(self.transport)
        if found is not None and found.name != self.name:
            attachments.drop(self.transport)
        return views(self.layout, attachments.get(self.transport, self._map).buffer)

    def _map(self) -> _Mapping:
        path = f"/proc/{self.process}/fd/{self.descriptor}"
        try:
            is_it = self.name in os.readlink(path)
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise _unreachable(f"{path}: {error.strerror}") from error
        if not is_it:
            os.close(descriptor)
            raise _unreachable(f"{path} is not the block of the trainer")
        return _Mapping(self.name, descriptor)


@dataclass(slots=True)
class SharedMemoryTransport:
    """Writes to targets in other processes of this machine, which run as the same user and see the same processes."""

    max_chunk_bytes: int = 64 << 20
    """Size of the block; it grows to the size of a tensor that is larger."""
    _transport: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)
    _mapping: _Mapping | None = field(default=None, init=False)

    def __call__(self, weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As `Transport.__call__`; raises InvalidValueError for a target of this process."""
        receiver, written = parcel_target(target, "shared memory"), list[str]()
        for chunk in chunks(weights, self.max_chunk_bytes):
            layout = layout_of(chunk)
            block = self._block(num_bytes_of(layout))
            fill(layout, chunk, block.buffer)
            parcel = SharedChunk(os.getpid(), block.descriptor, self._transport, block.name, layout)
            written += receiver.receive(parcel)
        return written

    def close(self) -> None:
        """Give the block back to the system, once no target has it mapped."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def _block(self, num_bytes: int) -> _Mapping:
        """Return a block of at least this size: the one that is there, if it suffices."""
        if self._mapping is None or self._mapping.buffer.numel() < num_bytes:
            self.close()
            name = f"rlcore-weights-{uuid.uuid4().hex}"
            descriptor = os.memfd_create(name)
            os.ftruncate(descriptor, max(num_bytes, self.max_chunk_bytes))
            self._mapping = _Mapping(name, descriptor)
        return self._mapping


def _unreachable(what: str) -> InvalidValueError:
    return InvalidValueError(
        f"weights in the memory of another process: {what}",
        legal="two processes of one machine, one user and one PID namespace",
        remedy="use CheckpointTransport or ProcessGroupTransport; of a run: --set sampler.name=torch",
    )
