"""What must not matter, and is changed to see that it does not. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SMALL_BUDGET = 64
"""Tokens of a pass that is smaller than a step of the tiny scenarios, and no smaller than a fixed microbatch."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Values of runtime settings, or a crash."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""
    crashes: bool = False
    """The run is lost amid its steps, and another one goes on from its checkpoint."""

    def __str__(self) -> str:
        told = [f"{name} {value}" for name, value in self.values.items()]
        return ", ".join(told + ["crash and resume"] * self.crashes) or self.name


SINGLE = (
    Perturbation("arrival order", {"runtime.arrival_seed": 3}),
    Perturbation("concurrency", {"runtime.concurrency": 3}),
    Perturbation("preemption", {"runtime.preempt_every": 1, "runtime.concurrency": 5}),
    Perturbation("sampling threads", {"runtime.sampling_threads": 2}),
    Perturbation("training threads", {"runtime.training_threads": 2}),
    Perturbation("token budget", {"runtime.token_budget": SMALL_BUDGET}),
    Perturbation("world size", {"runtime.world_size": 3}),
    Perturbation("replicas", {"sampler.replicas": 2}),
    Perturbation("evaluations", {"output.evaluate_every": 1}),
)
TOGETHER = Perturbation("all of them", {name: value for each in SINGLE for name, value in each.values.items()})
"""Tried first: where it moves nothing, none of them is looked at alone."""
RANKS = Perturbation("ranks", {"deployment.backend": "ray", "deployment.num_ranks": 2})
"""Processes that train together take seconds to start: tried only for faults that lie in them."""
CRASH = Perturbation("crash and resume", {}, crashes=True)


def drawn(seed: int) -> Perturbation:
    """A perturbation for a seed, always the same: each value drawn, one in five with a crash."""
    draw = random.Random(f"perturbation {seed}")
    values = {
        "runtime.arrival_seed": draw.randrange(1, 1000),
        "runtime.concurrency": draw.randrange(1, 17),
        "runtime.preempt_every": draw.choice([0, 1, 2, 5]),
        "runtime.sampling_threads": draw.choice([1, 2]),
        "runtime.training_threads": draw.choice([1, 2]),
        "runtime.token_budget": draw.choice([SMALL_BUDGET, 96, 700, 4096]),
        "runtime.world_size": draw.choice([1, 2, 3, 4]),
        "sampler.replicas": draw.choice([1, 1, 2, 3]),
        "output.evaluate_every": draw.choice([0, 1, 2]),
    }
    return Perturbation(f"drawn {seed}", values, crashes=draw.random() < 0.2)
