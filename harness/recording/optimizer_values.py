"""What a step of an optimizer reads and writes: gradients, what it remembers of each weight, and its settings."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

Named = Sequence[tuple[str, torch.Tensor]]
Setting = tuple[str, Any]
REMEMBERED = (int, float, torch.Tensor)
LARGE_BYTES = 2**16
WHOLE_EVERY = 8
"""Large state is read at every so many steps: it follows from gradients and earlier state."""
OF_PARAMETERS = ("params", "param_names")
"""Entries of a group that hold what it optimizes, not how."""
MAX_DEPTH = 3
"""Of tuples within tuples."""


class OptimizerSettings:
    """Finds the settings that a step of an optimizer depends on.

    A number is recorded in every step: schedules change it. An element of a tuple, a boolean, a text or None is
    recorded in an optimizer's first step, and in each step in which it has changed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[Optimizer], dict[str, Any]]] = {}
        """By the optimizer's id, which is its own as long as it lives."""

    def settings(self, optimizer: Optimizer) -> list[Setting]:
        """(name, value) of each setting to record now: group0.betas.1, group0.lr."""
        reference, seen = self._seen.get(id(optimizer), (None, {}))
        if reference is None or reference() is not optimizer:
            seen = {}
            self._seen[id(optimizer)] = weakref.ref(optimizer), seen
        found: list[Setting] = []
        for index, group in enumerate(optimizer.param_groups):
            for key, value in sorted(group.items()):
                if key not in OF_PARAMETERS:
                    found += _of_entry(f"group{index}.{key}", value, seen)
        return found


def _of_entry(name: str, value: Any, seen: dict[str, Any]) -> Iterator[Setting]:
    if isinstance(value, torch.Tensor) or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield name, value
        return
    for each_name, each in _elements(name, value):
        if isinstance(each, torch.Tensor):
            yield each_name, each
        elif each_name not in seen or type(seen[each_name]) is not type(each) or seen[each_name] != each:
            seen[each_name] = each
            yield each_name, str(each) if each is None else each


def _elements(name: str, value: Any, depth: int = 0) -> Iterator[Setting]:
    """Yield what can be recorded of an entry; nothing of objects, such as functions."""
    if value is None or isinstance(value, int | float | str | torch.Tensor):
        yield name, value
    elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
        for index, each in enumerate(value):
            yield from _elements(f"{name}.{index}", each, depth + 1)


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """Return each gradient there is, by its parameter's name."""
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def state_of(optimizer: Optimizer, name: str, parameter: torch.Tensor) -> tuple[list[Setting], list[Setting]]:
    """Return what an optimizer remembers of a weight: (numbers and small tensors, large ones)."""
    state = optimizer.state.get(parameter, {})
    named = [(f"{name} {key}", value) for key, value in state.items() if isinstance(value, REMEMBERED)]
    large = [each for each in named if isinstance(each[1], torch.Tensor) and each[1].nbytes >= LARGE_BYTES]
    return [each for each in named if not any(each is one for one in large)], large
