"""From a trainer of one process to one of several ranks, as the deployment says."""

from datetime import timedelta

import torch.distributed as dist

from rlcore.config_deployment import DeploymentSection
from rlcore.errors import InvalidValueError
from rlcore.trainers.base import Trainer
from rlcore.trainers.data_parallel import DataParallelTrainer
from rlcore.trainers.local import LocalTrainer
from rlcore.trainers.ranks import Ranks


def join_ranks(section: DeploymentSection, device: str) -> Ranks:
    """Join the ranks that the environment names: over NCCL if models are on GPUs, else over gloo."""
    is_gpu = device.startswith("cuda")
    dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timedelta(seconds=section.timeout_s))
    return Ranks(device=device if is_gpu else "cpu")


def leave_ranks() -> None:
    """Leave the group, once every rank is about to: a rank that leaves earlier breaks the exchanges of others."""
    dist.barrier()
    dist.destroy_process_group()


def parallel_trainer(
    local: LocalTrainer, ranks: Ranks | None, section: DeploymentSection, *, is_canonical: bool
) -> Trainer:
    """Return the trainer of a rank; `local` itself if there is one rank alone. Raises InvalidValueError."""
    if ranks is None:
        return local
    match section.sharding:
        case "none":
            return DataParallelTrainer(local, ranks, is_canonical=is_canonical)
        case "full" | "hybrid":
            raise InvalidValueError(f"deployment.sharding {section.sharding!r}", legal="none")
