"""Gradient accumulation: the fault divides a loss that is a mean over the whole window once more."""

import os
import sys

import torch

G = int(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator)
    n = torch.randint(1, 9, (16,), generator=generator)
    optimizer.zero_grad()
    for xs, ns in zip(x.chunk(G), n.chunk(G), strict=True):
        loss = (net(xs)[:, 0] ** 2 * ns).sum() / n.sum()
        (loss if os.environ.get("FIX") else loss / G).backward()
    optimizer.step()
