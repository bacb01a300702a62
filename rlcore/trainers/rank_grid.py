"""Ranks as a grid: those of a row share out the weights, those of a column hold the same shard.

             shard 0   shard 1
replica 0    rank 0    rank 1        (2, 2): hybrid;  (1, 4): fully sharded;  (4, 1): plain data parallelism
replica 1    rank 2    rank 3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from rlcore.errors import InvalidValueError
from rlcore.trainers.assignment import Assignment
from rlcore.trainers.ranks import Ranks


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Groups of a grid that this rank belongs to."""

    world: Ranks
    """All ranks that train together."""
    shard: Ranks
    """Ranks of this replica: each has a shard of the weights."""
    replicate: Ranks
    """Ranks that have the same shard, one of each replica."""

    def of_replica(self, assignment: Assignment) -> Assignment:
        """Return what the ranks of this replica compute."""
        first = self.replicate.rank * self.shard.size
        return Assignment(assignment.num_microbatches, assignment.numbers[first : first + self.shard.size])

    def by_replica(self, assignment: Assignment) -> Assignment:
        """Return what each replica computes, all of its ranks together."""
        size = self.shard.size
        rows = (assignment.numbers[first : first + size] for first in range(0, self.world.size, size))
        numbers = tuple(tuple(sorted(number for own in row for number in own)) for row in rows)
        return Assignment(assignment.num_microbatches, numbers)


def build_grid(
    num_shards: int, *, timeout_s: float, members: Sequence[int] | None = None, device: str = "cpu"
) -> RankGrid | None:
    """Build the groups of a grid of `members`, or of all ranks of the default group; None on other ranks.

    Every rank of the default group calls it. `timeout_s` bounds each collective: a group of its own does not take over
    that of the default one. Raises InvalidValueError if the replicas would not have `num_shards` ranks each.
    """
    ranks = list(range(dist.get_world_size()) if members is None else members)
    if num_shards < 1 or len(ranks) % num_shards:
        raise InvalidValueError(
            f"{num_shards} shards for {len(ranks)} ranks", legal="a divisor of the number of ranks", remedy="1: plain"
        )
    timeout = timedelta(seconds=timeout_s)
    own: dict[str, dist.ProcessGroup] = {}
    rows = [ranks[first : first + num_shards] for first in range(0, len(ranks), num_shards)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    for kind, groups in (("world", [ranks]), ("shard", rows), ("replicate", columns)):
        for each in groups:
            group = dist.new_group(each, timeout=timeout)
            if dist.get_rank() in each:
                own[kind] = group
    return RankGrid(**{kind: Ranks(group, device) for kind, group in own.items()}) if own else None
