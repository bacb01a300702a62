"""Two settings, each harmless alone: the fault of a cache of masks shows with several micro-batches and a cache."""

import os
import sys

import torch
from torch import nn

G, CACHE = int(sys.argv[1]), sys.argv[2] == "on"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
for step in range(4):
    generator = torch.Generator().manual_seed(step)
    x, keep, kept = torch.randn(16, 8, generator=generator), torch.rand(16, generator=generator) < 0.8, None
    optimizer.zero_grad()
    for index, xs in enumerate(x.chunk(G)):
        mask = keep.chunk(G)[index]
        if CACHE and not os.environ.get("FIX"):
            mask = kept = mask if kept is None else kept
        ((((net(xs)[:, 0] - xs.sum(1)) ** 2) * mask).sum() / keep.sum()).backward()
    optimizer.step()
