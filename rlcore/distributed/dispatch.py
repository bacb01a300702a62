"""Dispatch as data: how each argument of a worker's method is divided, and what the caller receives of the results.

    class PolicyWorker(Worker):
        dispatch_table = {
            "score": Entry({"batch": Shard(Padding.WRAP)}, collect=Collect.ROWS),
            "load": Entry({"path": Broadcast()}),
        }

        def score(self, batch: Batch) -> Tensor: ...
        def load(self, path: Path) -> None: ...

The table is checked when the class is defined: each entry has a public method, each public method has an entry, and
both name the same arguments.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import FunctionType
from typing import Any

from harness.bits.text import nearest
from rlcore.errors import InvalidValueError


class Padding(StrEnum):
    """What happens to a batch whose rows cannot be divided equally. Padding never reaches a result."""

    REFUSE = "refuse"
    """Raise an error."""
    UNEVEN = "uneven"
    """Pad nothing: the first parts have one row more, and a part may be empty."""
    WRAP = "wrap"
    """Repeat rows from the first one on until all parts are equal."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every worker receives the same value."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Each data-parallel rank receives neighbouring rows; ranks of one data-parallel rank receive the same rows."""

    padding: Padding = Padding.REFUSE


PartitionRule = Callable[[Any, int], Sequence[Sequence[int]]]
"""Takes a value with rows and a number of parts; returns the rows of each part. Every row belongs to one part."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Each data-parallel rank receives the rows that a rule assigns to it, such as `balanced_microbatches`."""

    rule: PartitionRule


Split = Broadcast | Shard | Partition


class Collect(StrEnum):
    """What the caller receives of the results."""

    FIRST = "first"
    """The result that is collected for data-parallel rank 0."""
    LIST = "list"
    """The result of each worker, by rank."""
    ROWS = "rows"
    """The rows of the collected results in the order of submission, without padding."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Dispatch of one method, which every rank runs. Raises InvalidValueError if its parts contradict each other."""

    arguments: Mapping[str, Split] = field(default_factory=dict)
    """How each argument is divided, by its name. Every argument of the method is here."""
    collect: Collect = Collect.FIRST

    def __post_init__(self) -> None:
        dividing = self.dividing
        if len({dividing[name] for name in dividing}) > 1:
            raise InvalidValueError(
                f"rows divided in several ways: {dividing}", legal="one way for all arguments of a method"
            )
        if self.collect is Collect.ROWS and not dividing:
            raise InvalidValueError(
                "rows are collected, and no argument is divided by rows",
                legal="an argument that is a Shard or Partition, or another Collect",
            )

    @property
    def dividing(self) -> dict[str, Shard | Partition]:
        """Return the arguments that are divided by rows."""
        return {name: split for name, split in self.arguments.items() if isinstance(split, Shard | Partition)}


Table = Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Which part of a batch each rank reads, and the ranks whose results are collected.

    Raises InvalidValueError if a data-parallel rank has no rank that collects, or more than one.
    """

    data_ranks: tuple[int, ...]
    """By rank: index of the part of a batch that it reads."""
    collects: tuple[bool, ...]
    """By rank: whether its result is collected."""

    def __post_init__(self) -> None:
        found = sorted(data for data, collects in zip(self.data_ranks, self.collects, strict=True) if collects)
        if not found or found != list(range(max(self.data_ranks) + 1)):
            raise InvalidValueError(
                f"data-parallel ranks {list(self.data_ranks)} of which {found} are collected",
                legal="each of them, from 0 on, collected from exactly one rank",
            )

    @property
    def collecting_ranks(self) -> tuple[int, ...]:
        """Ranks whose results are collected, by data-parallel rank."""
        pairs = zip(self.data_ranks, range(len(self.data_ranks)), self.collects, strict=True)
        return tuple(rank for _, rank in sorted((data, rank) for data, rank, collects in pairs if collects))


def data_parallel(size: int) -> Mesh:
    """Return the mesh of plain data parallelism and of FSDP: every rank reads rows of its own."""
    return Mesh(tuple(range(size)), (True,) * size)


def public_methods(cls: type, base: type) -> dict[str, inspect.Signature]:
    """Return the signatures, without self, of the methods that a class has beyond `base` without a leading underscore.

    Raises InvalidValueError for a method that cannot be called on a rank.
    """
    found: dict[str, inspect.Signature] = {}
    for each in reversed(cls.__mro__):
        for name, value in {} if issubclass(base, each) else vars(each).items():
            if name.startswith("_") or name in vars(base):
                continue
            where = f"{cls.__qualname__}.{name}"
            if isinstance(value, staticmethod | classmethod) or inspect.iscoroutinefunction(value):
                kind = type(value).__name__ if not isinstance(value, FunctionType) else "coroutine function"
                raise InvalidValueError(
                    f"{where} is a {kind}",
                    legal="functions of an object, which a worker runs to their end, one call after the other",
                    remedy="a function, or a leading underscore",
                )
            if isinstance(value, FunctionType):
                signature = inspect.signature(value)
                own = list(signature.parameters.values())[1:]
                if stars := [each for each in own if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]:
                    raise InvalidValueError(f"{where}: argument {stars[0]}", legal="arguments given by name")
                found[name] = signature.replace(parameters=own)
    return found


def check_table(cls: type, table: Table, base: type) -> None:
    """Compare a table with the public methods of its class, in both directions. Raises InvalidValueError."""
    methods, where = public_methods(cls, base), f"{cls.__qualname__}.dispatch_table"
    for name, entry in table.items():
        if name not in methods:
            raise InvalidValueError(
                f"{where} has an entry {name!r}, and {cls.__qualname__} has no public method of this name",
                legal=", ".join(sorted(methods)) or "no entry: the class has no public method",
                remedy=nearest(name, methods),
            )
        if not isinstance(entry, Entry):
            raise InvalidValueError(f"{where}[{name!r}] is {entry!r}", legal="an Entry")
        names = list(methods[name].parameters)
        for argument in entry.arguments:
            if argument not in names:
                raise InvalidValueError(
                    f"{where}[{name!r}] divides an argument {argument!r} that the method does not have",
                    legal=", ".join(names) or "none: the method has no argument",
                    remedy=nearest(argument, names),
                )
        if missing := [argument for argument in names if argument not in entry.arguments]:
            raise InvalidValueError(
                f"{where}[{name!r}] does not say how {', '.join(missing)} is divided",
                legal="Broadcast, Shard or Partition for every argument",
            )
    if missing := [name for name in methods if name not in table]:
        raise InvalidValueError(
            f"{where} has no entry for the public method {missing[0]!r}",
            legal="an entry for each public method",
            remedy=f'"{missing[0]}": Entry(...), or a leading underscore if the controller does not call it',
        )
