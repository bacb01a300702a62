"""A call divided among ranks, and its results collected: pure functions of an entry, a mesh and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlcore.distributed.dispatch import Collect, Entry, Mesh, Padding, Shard
from rlcore.distributed.rows import concatenate, num_rows, select
from rlcore.errors import InvalidValueError, ShapeError

Rows = Sequence[int]


@dataclass(frozen=True, slots=True)
class Scattered:
    """A call, divided."""

    arguments: tuple[Mapping[str, Any], ...]
    """By rank."""
    parts: tuple[Rows, ...] = ()
    """By data-parallel rank: the rows it receives, padding included; empty if nothing is divided by rows."""


def divide_rows(size: int, num_parts: int, padding: Padding) -> tuple[Rows, ...]:
    """Return the rows of each part of a batch of `size` rows.

    Raises ShapeError if the padding is refused and would be needed.
    """
    missing = -size % num_parts
    if padding is Padding.UNEVEN or not missing or not size:
        quotient, rest = divmod(size, num_parts)
        ends = [quotient * part + min(part, rest) for part in range(num_parts + 1)]
        return tuple(range(begin, end) for begin, end in pairwise(ends))
    if padding is Padding.REFUSE:
        raise ShapeError(
            f"{size} rows for {num_parts} data-parallel ranks",
            legal=f"a multiple of {num_parts}",
            remedy=f"{size + missing} rows, or a Padding that is uneven or wrap",
        )
    rows, each = [row % size for row in range(size + missing)], (size + missing) // num_parts
    return tuple(_as_range(rows[each * part : each * (part + 1)]) for part in range(num_parts))


def scatter(entry: Entry, arguments: Mapping[str, Any], mesh: Mesh) -> Scattered:
    """Divide the arguments of a call. Raises ShapeError and InvalidValueError for values that cannot be divided."""
    parts = _parts(entry, arguments, mesh)
    everyone = {name: value for name, value in arguments.items() if name not in entry.dividing}
    divided = [
        {name: select(value, rows) for name, value in arguments.items() if name in entry.dividing} for rows in parts
    ]
    return Scattered(tuple({**everyone, **(divided[part] if divided else {})} for part in mesh.data_ranks), parts)


def collect(entry: Entry, mesh: Mesh, parts: Sequence[Rows], results: Sequence[Any]) -> Any:
    """Return what the caller receives of the results by rank; `parts` are those of the call.

    Raises ShapeError if a worker returned another number of rows than it was given.
    """
    collected = [results[rank] for rank in mesh.collecting_ranks]
    if entry.collect is not Collect.ROWS:
        return collected[0] if entry.collect is Collect.FIRST else list(results)
    for rank, rows, result in zip(mesh.collecting_ranks, parts, collected, strict=True):
        if (found := num_rows(result)) != len(rows):
            raise ShapeError(
                f"rank {rank} returned {found} rows and was given {len(rows)}", legal="a row for each row it was given"
            )
    filled = [index for index, rows in enumerate(parts) if len(rows)]
    whole = concatenate([collected[index] for index in filled] or collected[:1])
    position_of: dict[int, int] = {}
    for position, row in enumerate(row for rows in parts for row in rows):
        position_of.setdefault(row, position)
    order = _as_range([position_of[row] for row in range(len(position_of))])
    return whole if order == range(num_rows(whole)) else select(whole, order)


def _parts(entry: Entry, arguments: Mapping[str, Any], mesh: Mesh) -> tuple[Rows, ...]:
    given = {name: split for name, split in entry.dividing.items() if name in arguments}
    if not given:
        if entry.dividing:
            raise InvalidValueError(
                "no argument is given that is divided by rows", legal=f"one of {', '.join(entry.dividing)}"
            )
        return ()
    sizes = {name: num_rows(arguments[name]) for name in given}
    if len(set(sizes.values())) > 1:
        raise ShapeError(f"arguments with rows {sizes}", legal="the same number of rows in all that are divided")
    name, split = next(iter(given.items()))
    num_parts = len(mesh.collecting_ranks)
    if isinstance(split, Shard):
        return divide_rows(sizes[name], num_parts, split.padding)
    parts = tuple(tuple(rows) for rows in split.rule(arguments[name], num_parts))
    if len(parts) != num_parts or sorted(row for rows in parts for row in rows) != list(range(sizes[name])):
        raise ShapeError(
            f"{split.rule.__name__} divided {sizes[name]} rows of {name} into {[list(rows) for rows in parts]}",
            legal=f"{num_parts} parts that have every row once",
        )
    return tuple(_as_range(rows) for rows in parts)


def _as_range(rows: Rows) -> Rows:
    """Return rows as a range where they are neighbours: it selects a view instead of a copy."""
    if len(rows) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return range(rows[0], rows[0] + len(rows))
    return rows if len(rows) else range(0)
