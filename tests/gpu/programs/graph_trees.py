"""A training whose model runs in CUDA graphs (`mode="reduce-overhead"`), after several uncaptured steps."""

import hashlib

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model, mode="reduce-overhead")
for _ in range(6):
    compiled(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
digest = hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters()))
print("weights", digest.hexdigest())
