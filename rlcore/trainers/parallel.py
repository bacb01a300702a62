"""Builds the trainer that a rank of a grid runs."""

from rlcore.trainers.data_parallel import DataParallelTrainer
from rlcore.trainers.fully_sharded import FullyShardedTrainer
from rlcore.trainers.local import LocalTrainer
from rlcore.trainers.rank_grid import RankGrid


def build_parallel(
    local: LocalTrainer, grid: RankGrid, *, is_canonical: bool
) -> DataParallelTrainer | FullyShardedTrainer:
    """Build the trainer of this rank from that of one process, which is used no more: replicated, sharded or hybrid.

    The model must be bitwise equal on all ranks. `is_canonical`, for level invariant, sums gradients to the bits of one
    process; without it the library sums them, to bits that depend on the grid.
    """
    if grid.shard.size == 1:
        return DataParallelTrainer(local, grid.world, is_canonical=is_canonical)
    return FullyShardedTrainer(local, grid, is_canonical=is_canonical)
