"""Noise is drawn for each micro-batch, by design: the fault divides the loss once too often."""

import os
import sys

import torch
from torch import nn

G = int(sys.argv[1])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
for _step in range(4):
    optimizer.zero_grad()
    for rows in [12 // G] * G:
        loss = nn.functional.softplus(net(torch.randn(rows, 4))).sum() / 12
        (loss if os.environ.get("FIX") else loss / G).backward()
    optimizer.step()
