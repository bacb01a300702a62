"""A closure, sparse gradients, and an optimizer that comes late: the fault leaves out the last step of that one."""

import os
import sys

import torch
from torch import nn

AHEAD = int(sys.argv[1])
torch.manual_seed(0)
table, head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)
first = torch.optim.LBFGS(head.parameters(), max_iter=3)
late: torch.optim.Optimizer | None = None
for step in range(4):
    x = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(step))

    def loss(x: torch.Tensor = x) -> torch.Tensor:
        return sum(((head(table(rows)) - 1) ** 2).sum() for rows in x.chunk(AHEAD)) / 16

    def closure() -> float:
        first.zero_grad()
        value = loss()
        value.backward()
        return value.item()

    first.step(closure)
    table.zero_grad()
    loss().backward()
    late = late or torch.optim.SparseAdam(table.parameters(), 1e-2)
    if os.environ.get("FIX") or AHEAD == 1 or step < 3:
        late.step()
