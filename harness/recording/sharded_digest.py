"""Tensors wherever they are: on the host, on a GPU, in parts over ranks. Many are digested at once.

on the host            xxh3_128 of its bytes, where they lie
on a GPU              shardsum_128, computed there; all digests of a batch come to the host in one copy
a part of a DTensor    shardsum_128 of this rank's part: the parts' sums add up to the whole's
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from harness.core.errors import TraceError
from harness.recording.gpu_digest import Shard, lanes_digest, shard_of, shardsum_lanes
from harness.recording.tensors import Digested, digest_tensor, dtype_name
from harness.trace.chain import DIGEST_BYTES, Scope
from harness.trace.digests import RAW, SHARDSUM_128


class PlacedShard(NamedTuple):
    """A value, and the scope that its placement leaves it."""

    value: torch.Tensor | Shard
    scope: Scope


def place(tensor: torch.Tensor, scope: Scope) -> PlacedShard:
    """A plain tensor as it is; of a DTensor what this rank holds of it.

    A part that another rank holds too, and a sum that is not finished, say nothing of the whole: they are physical.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return PlacedShard(tensor, scope)
    if all(placement.is_replicate() for placement in tensor.placements):
        return PlacedShard(tensor.to_local(), scope)
    try:
        shard = shard_of(tensor)
    except TraceError:
        return PlacedShard(tensor.to_local(), Scope.PHYSICAL)
    return PlacedShard(shard, Scope.SHARD if scope is Scope.LOGICAL and shard.is_counted else Scope.PHYSICAL)


def digest_placed(values: Sequence[torch.Tensor | Shard]) -> list[Digested]:
    """The digest of each; waits once for every GPU that any of them lies on."""
    found: dict[int, Digested] = {}
    waiting: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, value in enumerate(values):
        tensor = value.local if isinstance(value, Shard) else value
        if isinstance(value, torch.Tensor) and tensor.device.type == "cpu":
            found[index] = digest_tensor(tensor)
        elif isinstance(value, torch.Tensor) and tensor.numel() * tensor.element_size() <= DIGEST_BYTES:
            waiting.setdefault(tensor.device, []).append((index, _raw(tensor)))
        else:
            shard = value if isinstance(value, Shard) else shard_of(value)
            waiting.setdefault(tensor.device, []).append((index, shardsum_lanes(shard)))
    for lanes in waiting.values():
        fetched = torch.stack([each for _, each in lanes]).cpu()
        for (index, _), each in zip(lanes, fetched, strict=True):
            found[index] = _digested(values[index], each)
    return [found[index] for index in range(len(values))]


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a small tensor, filled up with zeros, as int64 [2] on its device."""
    filled = torch.zeros(DIGEST_BYTES, dtype=torch.uint8, device=tensor.device)
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    filled[: whole.numel()] = whole
    return filled.view(torch.int64)


def _digested(value: torch.Tensor | Shard, fetched: torch.Tensor) -> Digested:
    if isinstance(value, Shard):
        return Digested(dtype_name(value.local.dtype), value.shape, SHARDSUM_128, lanes_digest(fetched))
    dtype, shape = dtype_name(value.dtype), tuple(value.shape)
    if value.numel() * value.element_size() <= DIGEST_BYTES:
        return Digested(dtype, shape, RAW, bytes(fetched.view(torch.uint8).tolist()))
    return Digested(dtype, shape, SHARDSUM_128, lanes_digest(fetched))
