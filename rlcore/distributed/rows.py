"""Values with a batch axis: how many rows they have, some of the rows, and several values one after the other.

A tensor has rows along its first axis, a list or tuple has an item for each row, and every entry of a mapping has the
same rows. Named tuples and dataclasses have rows in each of their fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore.data.batch import Batch
from rlcore.errors import ShapeError

LEGAL = "a tensor with a batch axis, a list, a tuple, or a mapping, named tuple or dataclass of these"


def num_rows(value: object) -> int:
    """Return the number of rows. Raises ShapeError if the value has no rows, or its parts disagree."""
    match value:
        case Tensor():
            if value.dim() == 0 or value.is_nested:
                kind = "a nested tensor" if value.is_nested else "a tensor without axes"
                raise ShapeError(f"{kind} has no rows to divide", legal=LEGAL)
            return value.shape[0]
        case _ if (parts := _parts(value)) is not None:
            sizes = {name: num_rows(part) for name, part in parts.items()}
            if len(set(sizes.values())) != 1:
                raise ShapeError(f"parts of a {type(value).__name__} have rows {sizes}", legal="the same number")
            return next(iter(sizes.values()))
        case list() | tuple():
            return len(value)
    raise ShapeError(f"a {type(value).__name__} has no rows to divide", legal=LEGAL)


def select(value: Any, rows: Sequence[int]) -> Any:
    """Return the rows in this order; those of a range are a view of a tensor."""
    if isinstance(value, Tensor):
        if isinstance(rows, range) and rows.step == 1:
            return value[rows.start : rows.stop]
        return value[torch.tensor(list(rows), dtype=torch.int64, device=value.device)]
    if (parts := _parts(value)) is not None:
        return _rebuilt(value, {name: select(part, rows) for name, part in parts.items()})
    return type(value)(value[row] for row in rows)


def concatenate(values: Sequence[Any]) -> Any:
    """Return the rows of all values, one after the other. Raises ShapeError if they are of different kinds."""
    first = values[0]
    if len(kinds := {type(value) for value in values}) > 1:
        raise ShapeError(
            f"results of kinds {sorted(kind.__name__ for kind in kinds)} in one call", legal="one kind from all workers"
        )
    if isinstance(first, Tensor):
        return torch.cat(list(values))
    if (parts := _parts(first)) is not None:
        others = [_parts(value) or {} for value in values]
        if any(other.keys() != parts.keys() for other in others):
            raise ShapeError(
                f"results with entries {[sorted(other) for other in others]}", legal="the same entries from all workers"
            )
        return _rebuilt(first, {name: concatenate([other[name] for other in others]) for name in parts})
    return type(first)(item for value in values for item in value)


def _parts(value: object) -> dict[Any, Any] | None:
    """Return the entries of a mapping, named tuple or dataclass; None if the value is none of these or empty."""
    found: dict[Any, Any] | None = None
    if isinstance(value, Mapping):
        found = dict(value)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        found = dict(value._asdict())
    elif is_dataclass(value) and not isinstance(value, type):
        found = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    return found or None


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a value of the same kind with other parts."""
    if isinstance(value, Batch):
        return Batch(parts)
    return dict(parts) if isinstance(value, Mapping) else type(value)(**parts)
