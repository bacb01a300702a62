"""Tensors wherever they are: on the host, on a GPU, in parts over ranks. Many are digested at once.

on the host            xxh3_128 of its bytes, where they lie
on a GPU               shardsum_128 or packsum_128, computed there; all digests of a batch come to the host in one copy
a part of a DTensor    the same of this rank's part: the parts' sums add up to the whole's
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from harness.bits.errors import TraceError
from harness.bits.shard_sums import Shard, algorithm_of, digests, kernel_problem, on_host, shard_of_all
from harness.recording.gpu_memory import obstacle
from harness.recording.notices import say_once
from harness.recording.tensors import Digested, digest_tensor, dtype_name, missing
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


def shard_of(tensor: torch.Tensor) -> Shard:
    """A plain tensor as a whole; of a DTensor (FSDP2, tensor parallelism) this rank's part.

    TraceError for a DTensor that is a pending sum, or whose part is not one block of the whole.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return shard_of_all(tensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if unknown := [placement for placement in placements if type(placement).__name__ not in ("Shard", "Replicate")]:
        raise TraceError(
            f"a DTensor that is placed {unknown[0]}", legal="Shard, Replicate", remedy="redistribute it before"
        )
    local = tensor.to_local()
    offset = [0] * local.dim()
    sizes = list(tensor.shape)
    coordinate = mesh.get_coordinate()
    for mesh_dim, placement in enumerate(placements):
        if placement.is_shard():
            size, place, num_parts = sizes[placement.dim], coordinate[mesh_dim], mesh.size(mesh_dim)
            part = -(-size // num_parts)  # as torch.chunk cuts: all parts alike but the last ones
            first = min(part * place, size)
            offset[placement.dim] += first
            sizes[placement.dim] = min(part, size - first)
    if list(local.shape) != sizes:
        raise TraceError(f"a part of {tuple(local.shape)} where {tuple(sizes)} was expected", remedy="report it")
    is_first = all(placement.is_shard() or not coordinate[dim] for dim, placement in enumerate(placements))
    return Shard(local, tuple(tensor.shape), tuple(offset), is_first)


def digest_placed(values: Sequence[torch.Tensor | Shard]) -> list[Digested]:
    """The digest of each, those on a GPU as `Pending`: nothing waits. What has no memory is `missing`."""
    found: dict[int, Digested] = {}
    elsewhere: dict[torch.device, list[tuple[int, Shard, str]]] = {}
    for index, value in enumerate(values):
        tensor = value.local if isinstance(value, Shard) else value
        if isinstance(value, torch.Tensor) and on_host(tensor):
            found[index] = digest_tensor(tensor)
        elif why := obstacle(tensor):
            found[index] = missing(tuple(value.shape), why)
        else:
            shard = value if isinstance(value, Shard) else shard_of_all(value)
            algorithm = algorithm_of(shard, is_whole=shard is not value)
            elsewhere.setdefault(tensor.device, []).append((index, shard, algorithm))
    for device, batch in elsewhere.items():
        if device.type == "cuda" and (problem := kernel_problem(device)):
            say_once(
                f"digests on {device} take about 0.5 s for 10^9 parameters, since the Triton kernel does not run:"
                f" {problem}; install triton and a C compiler"
            )
        sums = digests([(shard, algorithm) for _, shard, algorithm in batch], device)
        for (index, shard, algorithm), digest in zip(batch, sums, strict=True):
            found[index] = Digested(dtype_name(shard.local.dtype), shard.shape, algorithm, digest)
    return [found[index] for index in range(len(values))]
