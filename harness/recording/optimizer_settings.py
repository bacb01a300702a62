"""Settings of optimizers as recorded values: learning rates, betas, switches such as amsgrad or fused."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

Setting = tuple[str, Any]
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
