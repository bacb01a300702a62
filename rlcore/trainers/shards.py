"""Tensors of which each rank has some rows: made whole, on every rank or on one; and cut out of whole ones.

Rank r of S has rows r * C to (r + 1) * C, where C is the number of rows divided by S and rounded up: the last ranks may
have fewer, or none.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from harness.bits.tensor_digests import digests_of
from rlcore.trainers.rank_grid import RankGrid
from rlcore.trainers.ranks import Ranks


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor on every rank; collective if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the part of a tensor that this rank has of another one; every rank has the whole one, none sends."""
    if isinstance(tensor, DTensor) or not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def first_row(num_rows: int, ranks: Ranks) -> int:
    """Return the first row of this rank."""
    return min(num_rows, ranks.rank * -(-num_rows // ranks.size))


def owned(named: Iterable[tuple[str, Tensor]], grid: RankGrid) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor whole on one rank only: tensor i on rank i modulo the number of ranks.

    Collective: every rank passes the same names in the same order, and iterates to the end. Beside its shards a rank
    holds one tensor at a time. What every rank has whole is not sent.
    """
    for index, (name, tensor) in enumerate(named):
        replica, owner = divmod(index % grid.world.size, grid.shard.size)
        if isinstance(tensor, DTensor) and replica == grid.replicate.rank:
            found = _gathered(tensor, grid.shard, owner)
        else:
            found = tensor
        if (replica, owner) == (grid.replicate.rank, grid.shard.rank):
            yield name, found


def on_first(named: Iterable[tuple[str, Tensor]], grid: RankGrid) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor whole on rank 0, and nothing on the others. Collective, as `owned`."""
    for name, tensor in named:
        is_first = grid.replicate.rank == 0
        found = _gathered(tensor, grid.shard, 0) if isinstance(tensor, DTensor) and is_first else tensor
        if grid.world.rank == 0:
            yield name, found


def owned_digests(named: Iterable[tuple[str, Tensor]], grid: RankGrid) -> dict[str, str]:
    """Return the digest of each whole tensor, on every rank; each is computed by one. Collective."""
    own = digests_of(owned(named, grid))
    return {name: digest for part in grid.world.gather_objects(own) for name, digest in part.items()}


def _gathered(tensor: DTensor, ranks: Ranks, owner: int) -> Tensor:
    """Return the whole tensor on the owner; on the others, the rows that they have."""
    local, num_rows = tensor.to_local(), tensor.shape[0]
    size = -(-num_rows // ranks.size)
    padded = local.new_zeros(size, *tensor.shape[1:])
    padded[: len(local)] = local
    if ranks.rank != owner:
        dist.gather(padded, group=ranks.group, group_dst=owner)
        return local
    received = local.new_empty(ranks.size * size, *tensor.shape[1:])
    dist.gather(padded, list(torch.split(received, size)), group=ranks.group, group_dst=owner)
    return received[:num_rows]
