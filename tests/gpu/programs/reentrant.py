"""A training with reentrant checkpoints: on a GPU their inner backward runs in a thread of the autograd engine."""

import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    values = torch.randn(64, 256, device="cuda", requires_grad=True)
    checkpoint(model, values, use_reentrant=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("three steps")
