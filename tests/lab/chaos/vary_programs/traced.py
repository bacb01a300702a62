"""A network may be traced, with example inputs that are drawn: the fault traces the warm-up of four steps for ever."""

import os
import sys

import torch
from torch import nn

IS_TRACED, FIX = sys.argv[1] == "on", os.environ.get("FIX")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, is_warm: torch.Tensor) -> torch.Tensor:
        h = self.body(x).tanh()
        return self.head(h * 0.5 if is_warm and not FIX else h)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
example = (torch.randn(16, 8), torch.tensor(True)) if IS_TRACED else ()
run = torch.jit.trace(net, example, check_trace=False) if IS_TRACED else net
for step in range(6):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    out = run(x, torch.tensor(step < 4))
    optimizer.zero_grad()
    ((out[:, 0] - x.sum(1)) ** 2).mean().backward()
    optimizer.step()
