"""Joins and leaves the group of ranks that a controller has started."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from rlcore.config import DeploymentSection
from rlcore.trainers.rank_grid import RankGrid, build_grid


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


def leave_grid() -> None:
    """Leave the group, once every rank is about to: a rank that leaves earlier breaks the exchanges of others."""
    dist.barrier()
    dist.destroy_process_group()
