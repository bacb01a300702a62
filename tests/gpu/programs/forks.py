"""A program that uses CUDA in a forked child, after `import torch`: in time while CUDA is not initialised."""

import multiprocessing
import sys

import torch


def child() -> None:
    """Use the GPU."""
    print("the child computes on", torch.zeros(1, device="cuda").device, flush=True)


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()  # on the host: a recording without a step is an error
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
