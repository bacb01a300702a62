"""What must not matter, and is changed to see that it does not. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Values of the section `runtime`, or a crash."""

    name: str
    values: Mapping[str, Any]
    crashes: bool = False
    """The run is lost amid its steps, and another one goes on from its checkpoint."""

    def __str__(self) -> str:
        told = [f"{name} {value}" for name, value in self.values.items()]
        return ", ".join(told + ["crash and resume"] * self.crashes) or self.name


SINGLE = (
    Perturbation("arrival order", {"arrival_seed": 3}),
    Perturbation("concurrency", {"concurrency": 3}),
    Perturbation("preemption", {"preempt_every": 1, "concurrency": 5}),
    Perturbation("sampling threads", {"sampling_threads": 2}),
    Perturbation("training threads", {"training_threads": 2}),
    Perturbation("microbatch budget", {"token_budget": 512}),
    Perturbation("world size", {"world_size": 3}),
)
TOGETHER = Perturbation("all of them", {name: value for each in SINGLE for name, value in each.values.items()})
"""Tried first: where it moves nothing, none of them is looked at alone."""
CRASH = Perturbation("crash and resume", {}, crashes=True)


def drawn(seed: int) -> Perturbation:
    """A perturbation for a seed, always the same: each value drawn, one in five with a crash."""
    draw = random.Random(f"perturbation {seed}")
    values = {
        "arrival_seed": draw.randrange(1, 1000),
        "concurrency": draw.randrange(1, 17),
        "preempt_every": draw.choice([0, 1, 2, 5]),
        "sampling_threads": draw.choice([1, 2]),
        "training_threads": draw.choice([1, 2]),
        "token_budget": draw.choice([512, 700, 4096]),
        "world_size": draw.choice([1, 2, 3, 4]),
    }
    return Perturbation(f"drawn {seed}", values, crashes=draw.random() < 0.2)
