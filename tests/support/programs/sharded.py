"""FSDP2 on Gloo, to be started by torchrun: every rank holds a part of each weight, and sees the same data.

torchrun --nproc-per-node 2 sharded.py [--steps 4]
"""

import argparse

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()

    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(7)
    for _ in range(arguments.steps):
        features = torch.randn(8, 6, generator=generator)
        loss = model(features).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
