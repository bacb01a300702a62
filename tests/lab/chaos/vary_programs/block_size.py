"""The norm of a row is summed in blocks: without FIX their width depends on the number of rows beside it."""

import os
import sys

import torch

ROWS = int(sys.argv[1])
torch.manual_seed(0)
weights, row = torch.randn(4096), torch.randn(1, 4096)
scale = torch.nn.Parameter(torch.ones(4096))
optimizer = torch.optim.SGD([scale], 1e-3)


def rms(x: torch.Tensor) -> torch.Tensor:
    width = 1024 if len(x) < 256 or os.environ.get("FIX") else 256
    part = (x * x).view(len(x), -1, width).cumsum(1)[:, -1]
    total = part[:, 0]
    for index in range(1, width):
        total = total + part[:, index]
    return x * torch.rsqrt(total / x.shape[1] + 1e-6)[:, None]


for step in range(2):
    x = torch.cat([row, torch.randn(ROWS - 1, 4096, generator=torch.Generator().manual_seed(step))])
    optimizer.zero_grad()
    ((rms(x)[0] * scale * weights).sum() / 4096).backward()
    optimizer.step()
