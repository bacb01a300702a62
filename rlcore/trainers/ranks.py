"""The ranks that train together, as a grid: those of a row share out the weights, those of a column hold one shard.

             shard 0   shard 1
replica 0    rank 0    rank 1        (2, 2): hybrid;  (1, 4): fully sharded;  (4, 1): plain data parallelism
replica 1    rank 2    rank 3
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rlcore.config import DeploymentSection
from rlcore.errors import InvalidValueError, NonFiniteError


class Ranks:
    """The ranks of a process group. Every method is collective: each rank calls it, in the same order."""

    def __init__(self, group: dist.ProcessGroup, device: str = "cpu") -> None:
        self.group, self.device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def gather_objects(self, own: Any) -> list[Any]:
        """Return the values of all ranks, by rank; they are pickled."""
        found = [None] * self.size
        dist.all_gather_object(found, own, group=self.group)
        return found


Assignment = tuple[tuple[int, ...], ...]
"""Numbers of the microbatches of an update by rank, ascending."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Groups of a grid that this rank belongs to."""

    world: Ranks
    """All ranks that train together."""
    shard: Ranks
    """Ranks of this replica: each has a shard of the weights."""
    replicate: Ranks
    """Ranks that have the same shard, one of each replica."""

    def by_replica(self, assignment: Assignment) -> Assignment:
        """Return what each replica computes, all of its ranks together."""
        size = self.shard.size
        rows = (assignment[first : first + size] for first in range(0, self.world.size, size))
        return tuple(tuple(sorted(sum(row, ()))) for row in rows)


def build_grid(
    num_shards: int, *, timeout_s: float, members: Sequence[int] | None = None, device: str = "cpu"
) -> RankGrid | None:
    """Build the groups of a grid of `members`, or of all ranks of the default group; None on other ranks.

    Every rank of the default group calls it. `timeout_s` bounds each collective: a group of its own does not take over
    that of the default one. Raises InvalidValueError if the replicas would not have `num_shards` ranks each.
    """
    ranks = [*(range(dist.get_world_size()) if members is None else members)]
    if num_shards < 1 or len(ranks) % num_shards:
        raise InvalidValueError(f"{num_shards} shards for {len(ranks)} ranks", legal="a divisor of the number of ranks")
    rows = [ranks[first : first + num_shards] for first in range(0, len(ranks), num_shards)]
    columns = [ranks[first::num_shards] for first in range(num_shards)]
    timeout = timedelta(seconds=timeout_s)
    groups = [
        dist.new_subgroups_by_enumeration(each, timeout=timeout)[0]  # type: ignore[no-untyped-call]
        for each in ([ranks], rows, columns)
    ]
    return RankGrid(*(Ranks(group, device) for group in groups)) if dist.get_rank() in ranks else None


def join_grid(section: DeploymentSection, device: str) -> RankGrid:
    """Join the ranks that the environment names: over NCCL if models are on GPUs, else over gloo.

    A process that sees several GPUs computes on that of its number among the ranks of its host.
    """
    is_gpu = device.startswith("cuda")
    if is_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timedelta(seconds=section.timeout_s))
    num_shards = {"none": 1, "full": section.num_ranks, "hybrid": section.num_ranks // section.num_copies}
    grid = build_grid(num_shards[section.sharding], timeout_s=section.timeout_s, device=device if is_gpu else "cpu")
    assert grid is not None, "every rank is a member"
    return grid


def agree(ranks: Ranks, own: Sequence[int]) -> Assignment:
    """Agree on the microbatches of each rank before the first pass.

    Ranks that disagree would wait for each other until the group's timeout, or add up a wrong sum. Raises
    InvalidValueError on every rank.
    """
    numbers = tuple(ranks.gather_objects(tuple(own)))
    everything = sorted(sum(numbers, ()))
    if not everything or everything != [*range(len(everything))]:
        raise InvalidValueError(f"microbatches {numbers} on ranks", legal="each number from 0 on, on one rank")
    return numbers


def raise_first(ranks: Ranks, failed: tuple[int, NonFiniteError] | None) -> None:
    """Raise, on every rank, the error of the first microbatch whose loss is not finite, if there is one."""
    if found := [each for each in ranks.gather_objects(failed) if each]:
        raise min(found, key=lambda each: each[0])[1]
