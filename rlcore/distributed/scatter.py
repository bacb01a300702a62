"""A call divided among ranks, and its results collected: pure functions of an entry, a mesh and values."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlcore.distributed.dispatch import (
    Broadcast,
    Collect,
    Entry,
    Execute,
    Function,
    Padding,
    Partition,
    PerDataRank,
    PerWorker,
    Shard,
)
from rlcore.distributed.mesh import Mesh
from rlcore.distributed.rows import concatenate, num_rows, select
from rlcore.errors import InvalidValueError, ShapeError

Rows = Sequence[int]


@dataclass(frozen=True, slots=True)
class Payload:
    """Arguments that some ranks receive; a backend ships them once."""

    ranks: tuple[int, ...]
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scattered:
    """A call, divided. A rank's arguments are those of all its payloads."""

    ranks: tuple[int, ...]
    """Ranks that run the method, ascending."""
    payloads: tuple[Payload, ...]
    parts: tuple[Rows, ...] = ()
    """By data-parallel rank: the rows it receives, padding included; empty if nothing is divided by rows."""

    def arguments_of(self, rank: int) -> dict[str, Any]:
        """Return the arguments of one rank."""
        found: dict[str, Any] = {}
        for payload in self.payloads:
            found |= payload.arguments if rank in payload.ranks else {}
        return found


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
    ranks = {
        Execute.ALL: tuple(range(mesh.size)),
        Execute.RANK_ZERO: (0,),
        Execute.COLLECTING: tuple(sorted(mesh.collecting_ranks)),
    }[entry.execute]
    parts = _parts(entry, arguments, mesh)
    everyone: dict[str, Any] = {}
    by_data: list[dict[str, Any]] = [{} for _ in range(mesh.data_size)]
    by_rank: list[dict[str, Any]] = [{} for _ in range(mesh.size)]
    for name, value in arguments.items():
        match entry.arguments[name]:
            case Broadcast():
                everyone[name] = value
            case Function():
                everyone[name] = _importable(name, value)
            case Shard() | Partition():
                for part, rows in zip(by_data, parts, strict=True):
                    part[name] = select(value, rows)
            case PerDataRank():
                for part, each in zip(
                    by_data, _counted(name, value, mesh.data_size, "data-parallel rank"), strict=True
                ):
                    part[name] = each
            case PerWorker():
                for own, each in zip(by_rank, _counted(name, value, mesh.size, "worker"), strict=True):
                    own[name] = each
    payloads = [Payload(ranks, everyone)]
    for data_rank, part in enumerate(by_data):
        payloads.append(Payload(tuple(rank for rank in mesh.ranks_of(data_rank) if rank in ranks), part))
    payloads += [Payload((rank,), by_rank[rank]) for rank in ranks]
    kept = tuple(payload for payload in payloads if payload.arguments and payload.ranks)
    return Scattered(ranks, kept, parts)


def collect(entry: Entry, mesh: Mesh, call: Scattered, results: Mapping[int, Any]) -> Any:
    """Return what the caller receives of the results by rank.

    Raises ShapeError if a worker returned another number of rows than it was given.
    """
    if entry.execute is Execute.RANK_ZERO:
        return results[0] if entry.collect is Collect.FIRST else [results[0]]
    collected = [results[rank] for rank in mesh.collecting_ranks]
    match entry.collect:
        case Collect.FIRST:
            return collected[0]
        case Collect.LIST:
            return [results[rank] for rank in call.ranks]
        case Collect.METRICS:
            return collected
    for rank, rows, result in zip(mesh.collecting_ranks, call.parts, collected, strict=True):
        if (found := num_rows(result)) != len(rows):
            raise ShapeError(
                f"rank {rank} returned {found} rows and was given {len(rows)}", legal="a row for each row it was given"
            )
    return _in_order(collected, call.parts)


def _in_order(results: Sequence[Any], parts: Sequence[Rows]) -> Any:
    """Return the rows of all parts in the order of submission, each once."""
    filled = [index for index, rows in enumerate(parts) if len(rows)]
    whole = concatenate([results[index] for index in filled] or results[:1])
    position_of: dict[int, int] = {}
    for position, row in enumerate(row for rows in parts for row in rows):
        position_of.setdefault(row, position)
    order = _as_range([position_of[row] for row in range(len(position_of))])
    is_whole = order == range(num_rows(whole))
    return whole if is_whole else select(whole, order)


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
    if isinstance(split, Shard):
        return divide_rows(sizes[name], mesh.data_size, split.padding)
    parts = tuple(tuple(rows) for rows in split.rule(arguments[name], mesh.data_size))
    if len(parts) != mesh.data_size or sorted(row for rows in parts for row in rows) != list(range(sizes[name])):
        raise ShapeError(
            f"{split.rule.__name__} divided {sizes[name]} rows of {name} into {[list(rows) for rows in parts]}",
            legal=f"{mesh.data_size} parts that have every row once",
        )
    return tuple(_as_range(rows) for rows in parts)


def _as_range(rows: Rows) -> Rows:
    """Return rows as a range where they are neighbours: it selects a view instead of a copy."""
    if len(rows) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return range(rows[0], rows[0] + len(rows))
    return rows if len(rows) else range(0)


def _counted(name: str, value: Any, size: int, each: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) != size:
        has = f"{len(value)} values" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        raise ShapeError(f"{name} has {has}", legal=f"a list or tuple of {size}, one for each {each}")
    return value


def _importable(name: str, value: Any) -> Any:
    """Return a function that other processes find by its name. Raises InvalidValueError."""
    if callable(value):
        try:
            pickle.dumps(value)
            return value
        except (pickle.PicklingError, AttributeError, TypeError):
            pass
    raise InvalidValueError(
        f"{name} is {value!r}",
        legal="a function of a module, or a functools.partial of one",
        remedy="move it to the top level of a module: other processes import it from there",
    )
