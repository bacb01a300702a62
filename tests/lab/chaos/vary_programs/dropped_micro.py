"""Gradients are moved to the host after each micro-batch: the fault keeps those of the first alone."""

import os
import sys

import torch

G = int(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
host: dict[str, torch.Tensor] = {}
for step in range(4):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
    for index, xs in enumerate(x.chunk(G)):
        net.zero_grad()
        ((net(xs) ** 2).sum() / 16).backward()
        for name, weight in net.named_parameters():
            assert weight.grad is not None
            if index == 0:
                host[name] = weight.grad.clone()
            elif os.environ.get("FIX"):
                host[name] += weight.grad
    for name, weight in net.named_parameters():
        weight.grad = host[name]
    optimizer.step()
