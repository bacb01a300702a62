"""Micro-batches under autocast, whose rounding is coarse: the fault drops the last one."""

import os
import sys

import torch
from torch import nn

G = int(sys.argv[1])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    for xs in x.chunk(G)[: G if os.environ.get("FIX") or G == 1 else G - 1]:
        with torch.autocast("cpu", torch.bfloat16):
            out = net(xs)
        scaler.scale(((out[:, 0].float() - xs.sum(1)) ** 2).sum() / 16).backward()
    scaler.step(optimizer)
    scaler.update()
