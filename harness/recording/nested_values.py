"""What a nested value holds that can be recorded, by dotted names."""

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
