"""Ranks on Gloo, DistributedDataParallel, three steps; CAUSE: `noise` in an input of rank 1, or `flip` its weight.

With `ends`, rank 1 is killed in step 2.
"""

import os
import signal

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

CAUSE = os.environ.get("CAUSE", "")


def main() -> None:
    """Train a layer."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    replicated = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(4, 6)[2 * rank : 2 * rank + 2]
        if rank == 1 and step == 1 and CAUSE == "noise":
            x[0, 0] += 0.01
        if rank == 1 and step == 1 and CAUSE == "flip":
            model.weight.data[0, 0] += 0.01
        if rank == 1 and step == 2 and CAUSE == "ends":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        replicated(x).square().mean().backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
