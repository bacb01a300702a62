"""Two Ray actors, each of which trains a model of its own.

python ray_actors.py [--steps 5]
"""

import argparse
import os

import ray
import torch
from torch import nn


@ray.remote
class Worker:
    """Trains a small model; its rank stands in its environment, as verl's workers have it."""

    def __init__(self, rank: int, world_size: int) -> None:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)
        torch.manual_seed(rank)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def train(self, num_steps: int) -> float:
        """The loss of the last step."""
        for _ in range(num_steps):
            features = torch.randn(32, 4)
            loss = (self.model(features).squeeze(1) - features[:, 0]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return float(loss)


def main() -> None:
    """Train both at once, and print their losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False)
    workers = [Worker.remote(rank, 2) for rank in range(2)]  # type: ignore[attr-defined]
    print("losses", *[f"{loss:.6f}" for loss in ray.get([worker.train.remote(arguments.steps) for worker in workers])])
    ray.shutdown()


if __name__ == "__main__":
    main()
