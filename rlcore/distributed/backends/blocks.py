"""Messages between the processes of one machine: large tensors in memory without a name, the rest pickled.

    encode(value) ─▶ Message(content, Block) ── pipe: bytes and a file descriptor ──▶ value with tensors of its own

A block is filled once and sent to any number of processes. Each maps it privately: a page is copied when the process
writes to it, so no process sees what another one does. The size of /dev/shm does not matter, and nothing is left when
processes are killed.
"""

import mmap
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from rlcore.distributed.backends.packed_values import pack, unpack
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views


class Block:
    """Tensors in shared memory that only descriptors lead to."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors into a new block."""
        self.layout = layout_of(tensors)
        self.descriptor = os.memfd_create("rlcore-call")
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, num_bytes_of(self.layout))
        fill(self.layout, tensors, torch.frombuffer(mmap.mmap(self.descriptor, 0), dtype=torch.uint8))

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
        return unpack(self.content, self.block or {})


def encode(value: object) -> Message:
    """Return a value as a message. Raises what pickle raises."""
    packed = pack(value, shares_devices=True)
    return Message(packed.content, Block(packed.tensors) if packed.tensors else None)


def _mapped(descriptor: Any, layout: tuple[Entry, ...]) -> dict[str, Tensor]:
    """Return the tensors of a block, mapped privately."""
    received = descriptor.detach()
    try:
        mapped = mmap.mmap(received, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(received)
    return views(layout, torch.frombuffer(mapped, dtype=torch.uint8))
