"""Origin of the first NaN of a step, by its record of operations. Pure, no torch.

    exp ─Inf─▶ ... ─Inf─▶ sub ─NaN─▶ mean ─NaN─▶ ...
    ^ origin              ^ made it

An operation makes a NaN where none of what it reads is one. Where it reads an Inf, which is how most NaN begin, that
Inf is followed back, from each operation to the one that wrote what it reads, to the one that made it of finite
numbers. An Inf on its own may be intended, as in a mask: it is reported only if there is no NaN. An Inf or a NaN that
an argument requested, for a mask or to mark memory, is not reported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.trace.ops import INF, NAN, Operation, OpRecord


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Origin of the first non-finite value of a step; operations in the order in which they began."""

    kind: str
    """NAN; INF where there is no NaN."""
    made_by: Operation | None
    """The first that gives it and reads none; None where it was there before."""
    read_by: Operation | None = None
    """The first to read one that was there before."""
    origin: Operation | None = None
    """Operation that made, from finite numbers, the Inf that led to the NaN; None if there is none."""
    num_between: int = 0
    """How many operations have handed the Inf on between `origin` and `made_by`."""


def find_non_finite(record: OpRecord) -> NonFinite | None:
    """The first NaN of a step, else the first Inf; None where everything that was read is finite."""
    by_index = {operation.index: operation for operation in record.operations}
    return _first(by_index, NAN) or _first(by_index, INF)


def _first(by_index: Mapping[int, Operation], kind: str) -> NonFinite | None:
    """The first of a kind that nobody has asked for; what was asked for may be handed on."""
    for operation in by_index.values():
        reads = _makers(operation, kind)
        if any(maker not in by_index for maker in reads):
            return NonFinite(kind, None, read_by=operation)
        if reads or not _gives(operation, kind) or _names(operation, kind):
            continue
        return _with_origin(operation, by_index) if kind == NAN else NonFinite(kind, operation)
    return None


def _with_origin(made_by: Operation, by_index: Mapping[int, Operation]) -> NonFinite:
    """Follow the Inf that an operation has made a NaN of back to where it began."""
    origin, num_handed_on = made_by, 0
    while reads := _makers(origin, INF):
        makers = [by_index[maker] for maker in reads if maker in by_index and maker < origin.index]
        if not makers:
            return NonFinite(NAN, made_by, num_between=num_handed_on)
        num_handed_on += origin is not made_by
        origin = min(makers, key=lambda each: each.index)
    return NonFinite(NAN, made_by, origin=None if origin is made_by else origin, num_between=num_handed_on)


def _gives(operation: Operation, kind: str) -> bool:
    return any(kind in value.not_finite for value in operation.outputs)


def _makers(operation: Operation, kind: str) -> list[int]:
    """Writer of each input that holds it."""
    pairs = zip(operation.makers, operation.inputs, strict=True)
    return [maker for maker, value in pairs if kind in value.not_finite]


def _names(operation: Operation, kind: str) -> bool:
    """Whether it is among the arguments: the operation gives what it was asked for."""
    return re.search(rf"\b{kind}\b", operation.arguments) is not None
