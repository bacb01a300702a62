"""Values that no module and no optimizer holds, which a program has asked to be recorded: averages in a list, say."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from harness.recording.nested_values import named_values


class WatchedValues:
    """The watched values by name. A tensor is held weakly; a container is held, and read anew in each step."""

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
