"""A program of one rank over NCCL: what it trains has the bits of a trainer without a group."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from rlcore.data.microbatches import Microbatch
from rlcore.trainers.ranks import build_grid
from rlcore.trainers.trainer import Trainer
from rlcore.weights.source import digest_of
from tests.support.rank_training import Odd, local_trainer, microbatches_of, negative_likelihood

NUM_STEPS = 3


def on_gpu(microbatch: Microbatch) -> Microbatch:
    """Return a microbatch whose tokens are on the GPU."""
    return Microbatch(microbatch.number, microbatch.samples, microbatch.tokens.to("cuda"), microbatch.first)


def trained(trainer: Trainer) -> tuple[str, str, tuple[float, ...]]:
    """Train some steps; return digests of weights and optimizer, and the norms."""
    norms = []
    for step in range(NUM_STEPS):
        microbatches = [on_gpu(microbatch) for microbatch in microbatches_of(step)]
        trainer.forward_backward(microbatches, negative_likelihood)
        norms.append(trainer.optimizer_step(learning_rate=0.01, max_norm=0.5))
    return digest_of(trainer.weights()), trainer.optimizer_digest(), tuple(norms)


def model() -> nn.Module:
    """Return the model of the tests, on the GPU."""
    return Odd().to("cuda")


def main() -> int:
    """Compare; the exit status."""
    grid = build_grid(1, timeout_s=60.0, device="cuda")
    assert grid is not None and grid.world.size == 1
    alone = trained(local_trainer(model=model()))
    over_nccl = trained(local_trainer(model=model(), grid=grid))
    if over_nccl != alone:
        print(f"over NCCL {over_nccl}, alone {alone}", file=sys.stderr)
        return 1
    print("equal")
    return 0


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    status = main()
    dist.destroy_process_group()
    sys.exit(status)
