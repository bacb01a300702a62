"""Tensors wherever they are: on the host, on a GPU, in parts over ranks. Many are digested at once.

on the host            xxh3_128 of its bytes, where they lie
on a GPU               shardsum_128, computed there; all digests of a batch come to the host in one copy
a part of a DTensor    shardsum_128 of this rank's part: the parts' sums add up to the whole's
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from harness.bits.digests import DIGEST_BYTES, RAW, SHARDSUM_128
from harness.bits.errors import TraceError
from harness.recording.gpu_batch import Sample, Value, lanes_of
from harness.recording.gpu_digest import Shard, lanes_digest, shard_of
from harness.recording.gpu_memory import obstacle
from harness.recording.tensors import Digested, digest_tensor, dtype_name, missing, on_host
from harness.trace.chain import Scope


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
    """The digest of each; waits once for every GPU that any of them lies on. What has no memory is `missing`."""
    return digest_and_sample(values)[0]


def digest_and_sample(
    values: Sequence[torch.Tensor | Shard], sampled: Sequence[torch.Tensor] = ()
) -> tuple[list[Digested], list[bytes]]:
    """(the digest of each value; for each sampled tensor a digest of some of its words, b"" without memory)."""
    digests: dict[int, Digested] = {}
    on_gpus: dict[torch.device, list[tuple[int, Value]]] = {}
    for index, value in enumerate(values):
        tensor = value.local if isinstance(value, Shard) else value
        if isinstance(value, torch.Tensor) and on_host(tensor):
            digests[index] = digest_tensor(tensor)
        elif why := obstacle(tensor):
            digests[index] = missing(tuple(value.shape), why)
        else:
            on_gpus.setdefault(tensor.device, []).append((index, value))
    samples: dict[int, bytes] = {}
    for index, tensor in enumerate(sampled, len(values)):
        if obstacle(tensor):
            samples[index] = b""
        else:
            on_gpus.setdefault(tensor.device, []).append((index, Sample(tensor)))
    for device, batch in on_gpus.items():
        for (index, each), lanes in zip(batch, lanes_of([each for _, each in batch], device), strict=True):
            if isinstance(each, Sample):
                samples[index] = lanes_digest(lanes)
            else:
                digests[index] = _digested(each, lanes)
    return [digests[index] for index in sorted(digests)], [samples[index] for index in sorted(samples)]


def _digested(value: torch.Tensor | Shard, fetched: torch.Tensor) -> Digested:
    if isinstance(value, Shard):
        return Digested(dtype_name(value.local.dtype), value.shape, SHARDSUM_128, lanes_digest(fetched))
    dtype, shape = dtype_name(value.dtype), tuple(value.shape)
    if value.nbytes <= DIGEST_BYTES:
        return Digested(dtype, shape, RAW, bytes(fetched.view(torch.uint8).tolist()))
    return Digested(dtype, shape, SHARDSUM_128, lanes_digest(fetched))
