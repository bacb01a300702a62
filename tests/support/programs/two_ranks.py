"""Data-parallel training on Gloo, to be started by torchrun; each rank has its own part of the data.

torchrun --nproc-per-node 2 two_ranks.py [--steps 6] [--weights FILE]
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and save the weights of rank 0 where that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--weights")
    arguments = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(arguments.steps):
        features = torch.randn(16, 8, generator=generator)
        loss = (model(features).squeeze(1) - features.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if arguments.weights and rank == 0:
        torch.save(model.module.state_dict(), arguments.weights)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
