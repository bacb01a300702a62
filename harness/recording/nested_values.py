"""What a nested value holds that can be recorded, by dotted names."""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_DEPTH = 4
"""Of containers within containers."""


def named_values(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every tensor, array, number and text in a value, however it is nested."""
    if isinstance(value, str | bytes | int | float | torch.Tensor) or hasattr(value, "__array_interface__"):
        yield name, value
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        for index, (key, each) in enumerate(value.items()):
            shown = key if isinstance(key, str | int) else index  # a text of any other may differ from run to run
            yield from named_values(each, f"{name}.{shown}", depth + 1)
    elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
        for index, each in enumerate(value):
            yield from named_values(each, f"{name}.{index}", depth + 1)


class WatchedValues:
    """Values by name that no module and no optimizer holds, and that a program has asked to be recorded.

    A tensor is held weakly; a container is held, and read anew in each step."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def watch(self, name: str, value: Any) -> None:
        """Watch a value from now on, instead of an earlier one of this name."""
        self._values[name] = weakref.ref(value) if isinstance(value, torch.Tensor) else value

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of what the watched values hold now: "watch.ema.0"."""
        for name, value in self._values.items():
            held = value() if isinstance(value, weakref.ref) else value
            if held is not None:
                yield from named_values(held, f"watch.{name}")
