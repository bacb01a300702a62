"""Two threads of one process, each with a model of its own."""

import threading

import torch
from torch import nn

BOTH = threading.Barrier(2)


def train() -> None:
    """A few steps, in turns with the other thread's."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        BOTH.wait()
        optimizer.step()


if __name__ == "__main__":
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("both trained")
