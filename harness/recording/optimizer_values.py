"""What an optimizer reads and writes: gradients, weights, and what it remembers of each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

Named = Sequence[tuple[str, torch.Tensor]]
REMEMBERED = (int, float, torch.Tensor)


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """Return each gradient there is, by its parameter's name."""
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def states_of(optimizer: Optimizer, parameters: Named) -> list[tuple[str, Any]]:
    """Return each weight, then what its optimizer remembers of it."""
    found: list[tuple[str, Any]] = []
    for name, parameter in parameters:
        found.append((name, parameter))
        state = optimizer.state.get(parameter, {})
        found += [(f"{name} {key}", value) for key, value in state.items() if isinstance(value, REMEMBERED)]
    return found
