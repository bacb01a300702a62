"""Workers load the batches: the fault draws noise from the generator of the process that loads."""

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX")


class Data(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        noise = torch.randn(8, generator=torch.Generator().manual_seed(1000 + index)) if FIX else torch.randn(8)
        return x + 0.1 * noise, x.sum()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
for x, y in DataLoader(Data(), 16, num_workers=int(sys.argv[1])):
    optimizer.zero_grad()
    ((net(x)[:, 0] - y) ** 2).mean().backward()
    optimizer.step()
