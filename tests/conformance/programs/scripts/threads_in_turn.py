"""Two threads that train one after the other; planted: the learning rate of the second."""

import threading

import torch
from outcome import is_time, save
from torch import nn


def train(number: int) -> None:
    """Train a perceptron of its own for four steps."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        if number == 1 and is_time(step, 2):
            optimizer.param_groups[0]["lr"] = 0.2
        optimizer.step()
    save(model.state_dict().values(), name=f"{number} ")


if __name__ == "__main__":
    torch.manual_seed(0)
    for number in range(2):
        thread = threading.Thread(target=train, args=(number,))
        thread.start()
        thread.join()
