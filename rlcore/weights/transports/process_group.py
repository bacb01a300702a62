"""The transport between processes of any machines: chunks broadcast in a process group of their own.

    trainer, rank 0                        the target's process, rank 1
    question: join ───────────────────────▶ connect to the trainer's store
    broadcast a chunk ═══ gloo or nccl ═══▶ broadcast: into a buffer
         and question: write it ──────────▶ wait, copy, answer

The default group of either process is not used: both may have one, of other ranks.
"""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch documents them as public

from rlcore.distributed.rendezvous import listening_store
from rlcore.errors import InvalidValueError
from rlcore.weights.target import NamedTensors
from rlcore.weights.transports.packing import Entry, Parcel, chunks, fill, layout_of, num_bytes_of, views

TRAINER, TARGET = 0, 1


@dataclass(frozen=True, slots=True)
class Invitation:
    """A parcel without tensors: the target's process joins the group."""

    host: str
    port: int
    name: str
    """Name of the group, which no other group has."""
    backend: str
    device: str
    timeout: timedelta

    def join(self, rank: int, store: Any) -> Any:
        """Return the group, when both have joined it; it has the store as long as it lives."""
        prefixed = PrefixStore(self.name, store)
        if self.backend == "gloo":
            return dist.ProcessGroupGloo(prefixed, rank, 2, self.timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self.timeout
        return dist.ProcessGroupNCCL(prefixed, rank, 2, options)

    def open(self, opened: dict[str, Any]) -> Mapping[str, Tensor]:
        """As `Parcel.open`."""
        store = TCPStore(self.host, self.port, is_master=False, timeout=self.timeout)
        opened["group"] = self.join(TARGET, store)
        return {}


@dataclass(frozen=True, slots=True)
class BroadcastChunk:
    """Tensors that the trainer broadcasts while this is asked."""

    device: str
    layout: tuple[Entry, ...]

    def open(self, opened: dict[str, Any]) -> Mapping[str, Tensor]:
        """As `Parcel.open`."""
        buffer = torch.empty(num_bytes_of(self.layout), dtype=torch.uint8, device=self.device)
        _broadcast(opened["group"], buffer).wait()
        return views(self.layout, buffer)


def _broadcast(group: Any, buffer: Tensor) -> Any:
    """Begin to send the trainer's buffer, or to receive it; return what waits for the end."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = TRAINER, 0
    return group.broadcast([buffer], options)


@dataclass(slots=True)
class ProcessGroup:
    """Sends to another process. `nccl` sends between GPUs; it has not run there yet."""

    backend: str = "gloo"
    host: str = "127.0.0.1"
    """Address of the trainer, as the target's process reaches it."""
    device: str = "cpu"
    """Device of the buffers in both processes; `nccl` needs "cuda"."""
    max_chunk_bytes: int = 64 << 20
    timeout_s: float = 60.0
    """Longest wait for the other process."""
    _group: Any = None

    def __post_init__(self) -> None:
        if self.backend not in ("gloo", "nccl"):
            raise InvalidValueError(f"backend {self.backend!r} of a transport", legal="gloo or nccl")
        if self.backend == "nccl" and not self.device.startswith("cuda"):
            raise InvalidValueError(f"backend nccl with buffers on {self.device}", legal="cuda; gloo sends from a CPU")

    def send(self, weights: NamedTensors, deliver: Callable[[Parcel], object]) -> None:
        """As `Transport.send`."""
        group, self._group = self._group or self._joined(deliver), None
        for chunk in chunks(weights, self.max_chunk_bytes):
            layout = layout_of(chunk)
            buffer = torch.empty(num_bytes_of(layout), dtype=torch.uint8, device=self.device)
            fill(layout, chunk, buffer)
            sent = _broadcast(group, buffer)
            deliver(BroadcastChunk(self.device, layout))
            sent.wait()
        self._group = group  # not after a failure: the two may not agree which chunk is next

    def _joined(self, deliver: Callable[[Parcel], object]) -> Any:
        """Return the group of both processes."""
        timeout = timedelta(seconds=self.timeout_s)
        store = listening_store(self.host, timeout)
        name = f"rlcore-weights-{uuid.uuid4().hex}"
        invitation = Invitation(self.host, store.port, name, self.backend, self.device, timeout)
        with ThreadPoolExecutor(1) as executor:  # both wait until the other has come
            joining = executor.submit(invitation.join, TRAINER, store)
            deliver(invitation)
            return joining.result()
