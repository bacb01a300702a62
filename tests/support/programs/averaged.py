"""A model with batch norm, and an average of its weights that no optimizer knows.

python averaged.py [--steps 5]
"""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(arguments.steps):
        loss = model(torch.randn(16, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)


if __name__ == "__main__":
    main()
