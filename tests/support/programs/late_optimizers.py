"""Trainings whose optimizers are made when they first step, in the order of a set, which each process has of its own.

python late_optimizers.py [KIND ...]
"""

import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

NUM_ITERATIONS = 4
NAMES = [f"p{index}" for index in range(5)]
Parameters = Mapping[str, torch.Tensor]


def free_parameters() -> dict[str, torch.Tensor]:
    """Parameters that no module owns."""
    return {name: nn.Parameter(torch.randn(3)) for name in NAMES}


def squares(parameters: Parameters) -> torch.Tensor:
    """A loss of all of them."""
    return torch.stack([parameter.square().sum() for parameter in parameters.values()]).sum()


def train(
    parameters: Parameters,
    loss: Callable[[], torch.Tensor],
    groups: Mapping[str, Sequence[str]],
    *,
    first: int = 0,
    rates: Mapping[str, float] | None = None,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Step the optimizer of each group after each backward from the first on, and make those that are not there."""
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for iteration in range(NUM_ITERATIONS):
        loss().backward()
        before()
        for group in set(groups) if iteration >= first else ():
            if group not in optimizers:
                rate = 0.1 if rates is None else rates[group]
                optimizers[group] = torch.optim.Adam([parameters[name] for name in groups[group]], lr=rate)
            optimizers[group].step()
        for parameter in parameters.values():
            parameter.grad = None


def one_each() -> None:
    """An optimizer for each parameter, which no module owns."""
    parameters = free_parameters()
    train(parameters, lambda: squares(parameters), {name: [name] for name in NAMES})


def own_rates() -> None:
    """The same, and each has a learning rate of its own."""
    parameters = free_parameters()
    rates = {name: 0.1 * (index + 1) for index, name in enumerate(NAMES)}
    train(parameters, lambda: squares(parameters), {name: [name] for name in NAMES}, rates=rates)


def two_each() -> None:
    """An optimizer for two parameters, or for one."""
    parameters = free_parameters()
    train(parameters, lambda: squares(parameters), {"a": ["p0", "p3"], "b": ["p4", "p1"], "c": ["p2"]})


def later() -> None:
    """No optimizer steps in the first iteration: its gradients are dropped."""
    parameters = free_parameters()
    train(parameters, lambda: squares(parameters), {name: [name] for name in NAMES}, first=1)


def of_modules() -> None:
    """Modules of one class own the parameters."""
    model = [nn.Linear(3, 3) for _ in range(3)]
    parameters = {f"{index}.{name}": each for index, part in enumerate(model) for name, each in part.named_parameters()}
    train(parameters, lambda: nn.Sequential(*model)(torch.ones(2, 3)).sum(), {name: [name] for name in parameters})


def beside() -> None:
    """Another optimizer was made before the loop, and steps first."""
    parameters, model = free_parameters(), nn.Linear(3, 3)
    main = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss() -> torch.Tensor:
        main.zero_grad()
        total: torch.Tensor = model(torch.stack([*parameters.values()])).sum()
        return total

    train(parameters, loss, {name: [name] for name in NAMES}, before=main.step)


KINDS = {each.__name__: each for each in (own_rates, one_each, two_each, later, of_modules, beside)}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for kind in sys.argv[1:] or KINDS:
        KINDS[kind]()
