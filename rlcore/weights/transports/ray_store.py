"""The transport to a Ray actor: each chunk is an object of Ray's store, which nodes fetch from one another.

ask = over_actor(actor)              # the actor has a method `answer(question)`, an `Answerer` of its target
sync(policy, RemoteTarget(ask), version, receipt, transport=RayStoreTransport())
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore.weights.remote import Ask, Question
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from rlcore.weights.transports.in_process import chunks
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views
from rlcore.weights.transports.parcels import Attachments, parcel_target


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Tensors in an object of Ray's store."""

    reference: Any
    layout: tuple[Entry, ...]

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`; the tensors are in the store itself, and are read only."""
        import ray

        content = ray.get(self.reference)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, which has no tensors that are read only
            return views(self.layout, torch.from_numpy(content))


@dataclass(frozen=True, slots=True)
class RayStoreTransport:
    """Writes to targets of Ray actors, asked by `over_actor`."""

    max_chunk_bytes: int = 64 << 20
    """Size of an object; a tensor that is larger is one by itself."""

    def __call__(self, weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As `Transport.__call__`; raises InvalidValueError for a target of this process."""
        import ray

        receiver, written = parcel_target(target, "ray"), list[str]()
        for chunk in chunks(weights, self.max_chunk_bytes):
            layout = layout_of(chunk)
            buffer = torch.empty(num_bytes_of(layout), dtype=torch.uint8)
            fill(layout, chunk, buffer)
            written += receiver.receive(StoredChunk(ray.put(buffer.numpy()), layout))
        return written


def over_actor(actor: Any, *, timeout_s: float = 600.0) -> Ask:
    """Return a channel to a Ray actor that answers by a method `answer`; its calls raise what Ray raises."""

    def ask(question: Question) -> Any:
        import ray

        return ray.get(actor.answer.remote(question), timeout=timeout_s)

    return ask
