"""The transport between processes of any machines: chunks broadcast in a process group of their own.

    trainer, rank 0                        the target's process, rank 1
    question: join ───────────────────────▶ connect to the trainer's store
    broadcast a chunk ═══ gloo or nccl ═══▶ broadcast: into a buffer
         and question: write it ──────────▶ wait, copy, answer

The default group of either process is not used: both may have one, of other ranks.
"""

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch documents them as public

from rlcore.distributed.backends.rendezvous import listening_store
from rlcore.errors import InvalidValueError
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from rlcore.weights.transports.in_process import chunks
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views
from rlcore.weights.transports.parcels import Attachments, ParcelTarget, parcel_target

TRAINER, TARGET = 0, 1
BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, slots=True)
class _Address:
    """Meeting point of a group, and how it sends."""

    host: str
    port: int
    name: str
    """Name of the group, which no other group has."""
    backend: str
    device: str
    """Device of the buffers: that of nccl is a GPU."""
    timeout_s: float

    def join(self, rank: int, store: Any = None) -> "_Group":
        """Return the group, when both have joined it."""
        timeout = timedelta(seconds=self.timeout_s)
        store = store or TCPStore(self.host, self.port, is_master=False, timeout=timeout)
        prefixed = PrefixStore(self.name, store)
        if self.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return _Group(dist.ProcessGroupNCCL(prefixed, rank, 2, options), store, self.device)
        return _Group(dist.ProcessGroupGloo(prefixed, rank, 2, timeout), store, self.device)


@dataclass(slots=True)
class _Group:
    """A group of two."""

    group: Any
    store: Any
    """It is held: a group reads it until its end."""
    device: str

    def broadcast(self, buffer: Tensor) -> Any:
        """Begin to send the trainer's buffer, or to receive it; return what waits for the end."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = TRAINER, 0
        return self.group.broadcast([buffer], options)

    def close(self) -> None:
        """Leave the group."""
        self.group = self.store = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A parcel without tensors: the target's process joins the group."""

    address: _Address

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`."""
        attachments.get(self.address.name, lambda: self.address.join(TARGET))
        return {}


@dataclass(frozen=True, slots=True)
class BroadcastChunk:
    """Tensors that the trainer broadcasts while this is asked."""

    group: str
    layout: tuple[Entry, ...]

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`."""
        group: _Group = attachments.opened[self.group]
        buffer = torch.empty(num_bytes_of(self.layout), dtype=torch.uint8, device=group.device)
        group.broadcast(buffer).wait()
        return views(self.layout, buffer)


@dataclass(slots=True)
class ProcessGroupTransport:
    """Writes to one target in another process. `nccl` sends between GPUs; it has not run there yet."""

    backend: str = "gloo"
    host: str = "127.0.0.1"
    """Address of the trainer, as the target's process reaches it."""
    device: str = "cpu"
    """Device of the buffers in both processes; `nccl` needs "cuda"."""
    max_chunk_bytes: int = 64 << 20
    timeout_s: float = 60.0
    """Longest wait for the other process."""
    _group: _Group | None = field(default=None, init=False)
    _name: str = field(default="", init=False)
    _target: ParcelTarget | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidValueError(f"backend {self.backend!r} of a transport", legal=" or ".join(BACKENDS))
        if self.backend == "nccl" and not self.device.startswith("cuda"):
            raise InvalidValueError(
                f"backend nccl with buffers on {self.device}", legal="cuda", remedy="backend='gloo' sends from a CPU"
            )

    def __call__(self, weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As `Transport.__call__`; raises InvalidValueError for a target of this process."""
        receiver, written = parcel_target(target, self.backend), list[str]()
        group = self._joined(receiver)
        try:
            for chunk in chunks(weights, self.max_chunk_bytes):
                layout = layout_of(chunk)
                buffer = torch.empty(num_bytes_of(layout), dtype=torch.uint8, device=self.device)
                fill(layout, chunk, buffer)
                sent = group.broadcast(buffer)
                written += receiver.receive(BroadcastChunk(self._name, layout))
                sent.wait()
        except BaseException:
            self.close()  # the two may not agree which chunk is next
            raise
        return written

    def close(self) -> None:
        """Leave the group; the next call builds another one."""
        if self._group is not None:
            self._group.close()
        self._group = self._target = None

    def _joined(self, target: ParcelTarget) -> _Group:
        """Return the group of the trainer and this target."""
        if self._group is None or self._target is not target:
            self.close()
            self._name = f"rlcore-weights-{uuid.uuid4().hex}"
            timeout = timedelta(seconds=self.timeout_s)
            store = listening_store(self.host, timeout)
            address = _Address(self.host, store.port, self._name, self.backend, self.device, self.timeout_s)
            with ThreadPoolExecutor(1) as executor:  # both wait until the other has come
                joining = executor.submit(address.join, TRAINER, store)
                target.receive(Invitation(address))
                self._group, self._target = joining.result(), target
        return self._group
