"""What an optimizer reads and writes: gradients, weights, and what it remembers of each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

Named = Sequence[tuple[str, torch.Tensor]]
Values = list[tuple[str, Any]]
REMEMBERED = (int, float, torch.Tensor)
LARGE_BYTES = 2**16
WHOLE_EVERY = 8
"""Large state is read at every so many steps: it follows from gradients and earlier state."""


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """Return each gradient there is, by its parameter's name."""
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def state_of(optimizer: Optimizer, name: str, parameter: torch.Tensor) -> tuple[Values, Values]:
    """Return what an optimizer remembers of a weight: (numbers and small tensors, large ones)."""
    state = optimizer.state.get(parameter, {})
    named = [(f"{name} {key}", value) for key, value in state.items() if isinstance(value, REMEMBERED)]
    large = [each for each in named if isinstance(each[1], torch.Tensor) and each[1].nbytes >= LARGE_BYTES]
    return [each for each in named if not any(each is one for one in large)], large
