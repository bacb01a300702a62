"""Runs a program with a disease planted from outside, named by the variable PLANT: the program's file stays as it is.

    PLANT=bit:7 python plant.py classifier.py --epochs 2

| disease | does |
|---|---|
| `none` | nothing |
| `bit:K` | flips bit 12 of one element of the third parameter's gradient in step K |
| `average:K` | changes one weight of the average in its K-th update |
| `statistics:K` | changes one running mean of a batch norm after its K-th forward |
| `noise:K` | flips a bit of what the K-th call of torch.randn of rank 1 gives |
| `unseeded_sampler` | shuffles with a seed of its own in every process |
| `set_order` | collates each batch in the order of a set of text |
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import RandomSampler
from torch.utils.data.dataloader import default_collate

ELEMENT = (3, 4)


def plant_bit(step: int) -> None:
    """Of the gradient that backward makes of an optimizer's third parameter."""
    original = Optimizer.__init__

    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        num_seen = 0

        def flip(parameter: torch.Tensor) -> None:
            nonlocal num_seen
            if num_seen == step and parameter.grad is not None:
                parameter.grad.view(torch.int32)[ELEMENT] ^= 1 << 12
            num_seen += 1

        self.param_groups[0]["params"][2].register_post_accumulate_grad_hook(flip)

    Optimizer.__init__ = init  # type: ignore[method-assign]


def plant_average(update: int) -> None:
    """By something that is another number in every process."""
    original, num_updates = AveragedModel.update_parameters, 0

    def update_parameters(self: AveragedModel, model: torch.nn.Module) -> None:
        nonlocal num_updates
        original(self, model)
        if num_updates == update:
            self.module[0].weight.data[1, 2] += os.getpid() / 1e7
        num_updates += 1

    AveragedModel.update_parameters = update_parameters


def plant_statistics(call: int) -> None:
    """By something that is another number in every process."""
    original, num_calls = torch.nn.BatchNorm1d.forward, 0

    def forward(self: torch.nn.BatchNorm1d, features: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        made = original(self, features)
        if num_calls == call:
            self.running_mean.data[3] += os.getpid() / 1e7
        num_calls += 1
        return made

    torch.nn.BatchNorm1d.forward = forward


def plant_noise(call: int) -> None:
    """Of rank 1 only."""
    original, num_calls = torch.randn, 0

    def randn(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal num_calls
        made: torch.Tensor = original(*args, **kwargs)
        if num_calls == call:
            made.view(torch.int32)[ELEMENT] ^= 1 << 20
        num_calls += 1
        return made

    if os.environ.get("RANK") == "1":
        torch.randn = randn


def plant_unseeded_sampler() -> None:
    """Its order comes from the system's entropy."""
    original = RandomSampler.__init__

    def init(self: RandomSampler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.generator = torch.Generator()
        self.generator.seed()

    RandomSampler.__init__ = init  # type: ignore[method-assign]


def plant_set_order() -> None:
    """Sets of text are ordered by PYTHONHASHSEED."""

    def collate(samples: list[Any]) -> Any:
        order = {f"sample {index}" for index in range(len(samples))}
        return default_collate([samples[int(name.removeprefix("sample "))] for name in order])

    torch.utils.data.dataloader._utils.collate.default_collate = collate


def main() -> None:
    """Plant, then run the program as if it had been started itself."""
    disease, _, value = os.environ.get("PLANT", "none").partition(":")
    plants = {
        "none": lambda: None,
        "bit": lambda: plant_bit(int(value)),
        "average": lambda: plant_average(int(value)),
        "statistics": lambda: plant_statistics(int(value)),
        "noise": lambda: plant_noise(int(value)),
        "unseeded_sampler": plant_unseeded_sampler,
        "set_order": plant_set_order,
    }
    plants[disease]()
    program = Path(sys.argv[1])
    if not program.exists():
        program = Path(__file__).with_name(program.name)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
