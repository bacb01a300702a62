"""A training whose optimizers step within backward, as hooks of their parameters: on a GPU in the engine's thread."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in model.parameters()}


def step(parameter: torch.Tensor) -> None:
    """Update one parameter."""
    optimizers[parameter].step()  # type: ignore[index]
    optimizers[parameter].zero_grad()  # type: ignore[index]


for each in model.parameters():
    each.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
for _ in range(3):
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
print("three steps")
