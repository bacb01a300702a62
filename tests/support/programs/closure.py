"""Optimizers that are given a closure: AdamW and LBFGS, and the loop of Lightning, which clips within the closure.

python closure.py lightning --weights out.pt
python closure.py lightning --change 2       # doubles a gradient after the backward of step 2
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

NUM_STEPS = 4


def main() -> None:
    """Train a perceptron for four steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["adamw", "lbfgs", "lightning"])
    parser.add_argument("--weights")
    parser.add_argument("--change", type=int)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    inputs, targets = torch.randn(NUM_STEPS, 32, 6), torch.randn(NUM_STEPS, 32, 3)
    optimizer: torch.optim.Optimizer
    if arguments.kind == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(index: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[index]), targets[index])
        loss.backward()
        gradient = model[4].weight.grad
        if index == arguments.change and gradient is not None:
            gradient *= 2
        return loss

    def clipped(closure: Callable[[], torch.Tensor]) -> torch.Tensor:
        loss = closure()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        return loss

    for index in range(NUM_STEPS):
        closure: Callable[[], torch.Tensor] = partial(loss_of, index)
        if arguments.kind == "lightning":
            optimizer.step(closure=partial(clipped, closure))
        else:
            optimizer.step(closure)
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
