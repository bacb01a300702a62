"""Two trainings in processes that multiprocessing spawns, neither with a rank; planted: a gradient of the second."""

import multiprocessing

import torch
from outcome import is_time, nudge, save
from torch import nn


def train(seed: int) -> None:
    """Train a perceptron for four steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if seed == 1 and is_time(step, 2):
            nudge(model[2].bias.grad)
        optimizer.step()
    save(model.state_dict().values(), name=f"{seed} ")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=train, args=(seed,)) for seed in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
