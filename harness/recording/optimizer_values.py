"""What an optimizer reads and writes: gradients, weights, and what it remembers of each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

Named = Sequence[tuple[str, torch.Tensor]]
REMEMBERED = (int, float, torch.Tensor)
LARGE_BYTES = 2**16
WHOLE_EVERY = 8
"""Large moments are read at every so many steps: they follow from gradients and earlier moments."""


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """Return each gradient there is, by its parameter's name."""
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def state_of(optimizer: Optimizer, name: str, parameter: torch.Tensor, *, is_whole: bool) -> list[tuple[str, Any]]:
    """Return what an optimizer remembers of a weight; unless it `is_whole`, without large tensors."""
    state = optimizer.state.get(parameter, {})
    return [
        (f"{name} {key}", value)
        for key, value in state.items()
        if isinstance(value, REMEMBERED)
        and (is_whole or not isinstance(value, torch.Tensor) or value.nbytes < LARGE_BYTES)
    ]
