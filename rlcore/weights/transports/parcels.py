"""Parcels: what a transport leaves for the process of a target, as plain values that say where the tensors are.

trainer: transport ─▶ parcel ──question──▶ the target's process: open ─▶ tensors ─▶ target.write
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views


class Closable(Protocol):
    """A resource of the target's process."""

    def close(self) -> None:
        """Release it."""


@dataclass(slots=True)
class Attachments:
    """Resources that parcels share: opened once in a process, closed together."""

    opened: dict[str, Any] = field(default_factory=dict)
    """By a name that the parcel chooses."""

    def get(self, name: str, build: Callable[[], Closable]) -> Any:
        """Return the resource of this name, built at the first request."""
        if name not in self.opened:
            self.opened[name] = build()
        return self.opened[name]

    def drop(self, name: str) -> None:
        """Close the resource of this name, if there is one."""
        if name in self.opened:
            self.opened.pop(name).close()

    def close(self) -> None:
        """Close all of them, the last one first."""
        while self.opened:
            self.opened.popitem()[1].close()


class Parcel(Protocol):
    """Tensors on their way. It can be pickled."""

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """Return the tensors, in the target's process. They are valid until the question is answered."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Tensors within the message itself: for small ones, and for channels that have nothing better."""

    layout: tuple[Entry, ...]
    content: bytearray

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Copy tensors of any device into a parcel."""
        layout = layout_of(tensors)
        content = bytearray(max(num_bytes_of(layout), 1))  # torch takes no empty buffer
        fill(layout, tensors, torch.frombuffer(content, dtype=torch.uint8))
        return cls(layout, content)

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`."""
        return views(self.layout, torch.frombuffer(self.content, dtype=torch.uint8))


@runtime_checkable
class ParcelTarget(WeightTarget, Protocol):
    """A weight target in another process, which opens parcels there."""

    def receive(self, parcel: Parcel) -> list[str]:
        """Let the target write a parcel's tensors; return the names that were written."""


def parcel_target(target: WeightTarget, transport: str) -> ParcelTarget:
    """Return the target if parcels reach it; raises InvalidValueError for a target of this process."""
    if not isinstance(target, ParcelTarget):
        raise InvalidValueError(
            f"transport {transport} to a {type(target).__name__} of this process",
            legal="a target in another process: rlcore.weights.remote.RemoteTarget",
            remedy="write to targets of this process by InProcessTransport",
        )
    return target
