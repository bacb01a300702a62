"""Two processes that multiprocessing spawns, each with a training of its own; neither has a rank.

The variable FIRST names the one that ends its first step before the other begins: 0 or 1.
"""

import multiprocessing
import os
from multiprocessing.synchronize import Event

import torch
from torch import nn

NUM_STEPS = 3


def train(seed: int, is_first: bool, is_under_way: Event) -> None:
    """Train a perceptron for three steps."""
    if not is_first:
        is_under_way.wait()
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        is_under_way.set()


def main() -> None:
    """Spawn both, and wait for them."""
    context = multiprocessing.get_context("spawn")
    is_under_way = context.Event()
    first = int(os.environ.get("FIRST", "0"))
    children = [context.Process(target=train, args=(seed, seed == first, is_under_way)) for seed in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
