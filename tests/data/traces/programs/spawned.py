"""Two trainings in processes without a rank, one after the other; CAUSE: `order` of the two, or a `gradient`."""

import multiprocessing
import os

import torch
from torch import nn

CAUSE = os.environ.get("CAUSE", "")


def train(seed: int) -> None:
    """Train a layer for three steps."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if CAUSE == "gradient" and (seed, step) == (1, 1):
            assert model.bias.grad is not None
            model.bias.grad[0] += 0.01
        optimizer.step()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for seed in (1, 0) if CAUSE == "order" else (0, 1):
        child = context.Process(target=train, args=(seed,))
        child.start()
        child.join()
