"""Ten steps whose arithmetic is exact, so that every machine computes the same bits."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
with torch.no_grad():
    for weights in model.parameters():
        weights.copy_(torch.arange(1, weights.numel() + 1).view_as(weights))
optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)
average = torch.nn.Linear(2, 1, bias=False).requires_grad_(False)
average.weight.zero_()
for step in range(10):
    optimizer.zero_grad()
    model(torch.tensor([[step % 3 - 1.0, 1.0]])).sum().backward()
    for weights in model.parameters():
        weights.grad.sign_()
    optimizer.step()
    average.weight.copy_(model[1].weight.detach())
