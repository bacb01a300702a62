"""Two threads that train one after the other; CAUSE `rate`: the second's learning rate in its last step."""

import os
import threading

import torch
from torch import nn


def train(number: int) -> None:
    """Train a layer of its own for two steps."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        if (number, step) == (1, 1) and os.environ.get("CAUSE") == "rate":
            optimizer.param_groups[0]["lr"] = 0.2
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    for number in range(2):
        thread = threading.Thread(target=train, args=(number,))
        thread.start()
        thread.join()
