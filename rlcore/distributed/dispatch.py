"""Dispatch as data: how each argument of a worker's method is divided, who runs it, and how results are collected.

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

DATA = "data"
"""Name of the mesh that an entry uses where it names no other."""


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
class Function:
    """Every worker receives the same function, which other processes can import by its name."""


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


@dataclass(frozen=True, slots=True)
class PerDataRank:
    """The caller gives a sequence with a value for each data-parallel rank."""


@dataclass(frozen=True, slots=True)
class PerWorker:
    """The caller gives a sequence with a value for each worker."""


Split = Broadcast | Function | Shard | Partition | PerDataRank | PerWorker


class Execute(StrEnum):
    """Which workers run a method."""

    ALL = "all"
    RANK_ZERO = "rank_zero"
    COLLECTING = "collecting"
    """Those whose results are collected: one for each data-parallel rank. The method must not be collective."""


class Collect(StrEnum):
    """What the caller receives of the results."""

    FIRST = "first"
    """The result of the rank that is collected for data-parallel rank 0; of rank 0 where it runs alone."""
    LIST = "list"
    """The result of each worker that ran the method, by rank."""
    ROWS = "rows"
    """The rows of all results in the order of submission, without padding."""
    METRICS = "metrics"
    """The result of each data-parallel rank, unmerged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The dispatch of one method.

    Raises InvalidValueError if the parts contradict each other.
    """

    arguments: Mapping[str, Split] = field(default_factory=dict)
    """How each argument is divided, by its name. Every argument of the method is here."""
    execute: Execute = Execute.ALL
    collect: Collect = Collect.FIRST
    is_blocking: bool = True
    """False: a call returns a `Future` at once."""
    mesh: str = DATA
    """Name of the mesh that divides and collects."""

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
        if self.execute is Execute.RANK_ZERO:
            divided = [name for name, split in self.arguments.items() if not isinstance(split, Broadcast | Function)]
            if divided:
                raise InvalidValueError(
                    f"{', '.join(divided)}: divided among workers, and rank 0 runs alone", legal="Broadcast, Function"
                )
            if self.collect in (Collect.ROWS, Collect.METRICS):
                raise InvalidValueError(f"{self.collect} collected from rank 0 alone", legal="first, list")

    @property
    def dividing(self) -> dict[str, Shard | Partition]:
        """Return the arguments that are divided by rows."""
        return {name: split for name, split in self.arguments.items() if isinstance(split, Shard | Partition)}


Table = Mapping[str, Entry]


def public_methods(cls: type, base: type) -> dict[str, inspect.Signature]:
    """Return the signatures, without self, of the methods that a class has beyond `base` without a leading underscore.

    Raises InvalidValueError for a method that cannot be called on a rank.
    """
    found: dict[str, inspect.Signature] = {}
    for each in reversed(cls.__mro__):
        if issubclass(base, each):
            continue
        for name, value in vars(each).items():
            if name.startswith("_") or name in vars(base):
                continue
            if isinstance(value, FunctionType):
                found[name] = _signature(f"{cls.__qualname__}.{name}", value)
            elif isinstance(value, staticmethod | classmethod):
                raise InvalidValueError(
                    f"{cls.__qualname__}.{name} is a {type(value).__name__}",
                    legal="methods of an object, which lives on a rank",
                    remedy="a function of the module, or a leading underscore",
                )
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
        _check_entry(f"{where}[{name!r}]", list(methods[name].parameters), entry)
    for name in methods:
        if name not in table:
            raise InvalidValueError(
                f"{where} has no entry for the public method {name!r}",
                legal="an entry for each public method",
                remedy=f'"{name}": Entry(...), or a leading underscore if the controller does not call it',
            )


def _check_entry(where: str, names: Sequence[str], entry: Entry) -> None:
    if not isinstance(entry, Entry):
        raise InvalidValueError(f"{where} is {entry!r}", legal="an Entry")
    for name in entry.arguments:
        if name not in names:
            raise InvalidValueError(
                f"{where} divides an argument {name!r} that the method does not have",
                legal=", ".join(names) or "none: the method has no argument",
                remedy=nearest(name, names),
            )
    if missing := [name for name in names if name not in entry.arguments]:
        raise InvalidValueError(
            f"{where} does not say how {', '.join(missing)} is divided",
            legal="Broadcast, Function, Shard, Partition, PerDataRank or PerWorker for every argument",
        )


def _signature(where: str, method: Callable[..., Any]) -> inspect.Signature:
    if inspect.iscoroutinefunction(method):
        raise InvalidValueError(
            f"{where} is a coroutine function",
            legal="a function, which a worker runs to its end before the next call",
            remedy="a function, and is_blocking=False in its entry: calls then return a Future",
        )
    signature = inspect.signature(method)
    own = list(signature.parameters.values())[1:]
    for parameter in own:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidValueError(f"{where}: argument {parameter}", legal="arguments that can be given by name")
    return signature.replace(parameters=own)
