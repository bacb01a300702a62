"""Two ranks on Gloo, to be started by torchrun: DistributedDataParallel; planted: noise in rank 1's inputs."""

import torch
from outcome import is_time, nudge, save
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train six steps."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        inputs = torch.randn(8, 6, generator=generator)
        if rank == 1 and is_time(step, 3):
            nudge(inputs)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    if rank == 0:
        save(model.state_dict().values())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
