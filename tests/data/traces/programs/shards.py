"""A global value in shards over the ranks that there are, two steps; CAUSE `shard`: an element of it in step 1."""

import os

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from harness.recording import open_recorder


def main() -> None:
    """Record a weight in shards, and a loss that every rank has."""
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    recorder = open_recorder()
    for step in range(2):
        weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step == 1 and os.environ.get("CAUSE") == "shard":
            weight[5, 0] += 0.01
        recorder.begin_step(step)
        recorder.record("loss", "loss", torch.tensor(0.5 + step))
        recorder.record("optimizer", "weight", distribute_tensor(weight, mesh, [Shard(0)]))
        recorder.end_step(loss=0.5)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
