"""Comparison of two lists of values of one step: which differ, and which of them came first. Pure.

Values are paired by scope and key, not by position; position decides which difference came first.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count
from math import inf
from operator import ne
from struct import iter_unpack

from harness.bits.digests import DIGEST_BYTES, RAW
from harness.trace.chain import RecordedValue, Scope, raw_value
from harness.trace.element_diff import ValueDifference, compare
from harness.trace.format import Columns
from harness.trace.verdict import Difference

_CHUNK = 4096 * DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class RecordedDifference:
    """Two unequal values of one key."""

    position: float
    """Index among A's values; if only B has the value, one half after the value it follows."""
    what: Difference
    a: RecordedValue | None
    b: RecordedValue | None

    @property
    def scope(self) -> Scope:
        recorded_value = self.a or self.b
        assert recorded_value is not None
        return recorded_value.scope

    def value(self) -> ValueDifference | None:
        """The difference of the elements, if the digests hold them."""
        if self.a is None or self.b is None or self.what is not Difference.VALUE or self.a.algorithm != RAW:
            return None
        return compare(self.a.dtype, raw_value(self.a), raw_value(self.b))


@dataclass(frozen=True, slots=True)
class StepDifference:
    """Result of comparing two lists of values."""

    first: RecordedDifference | None
    """None if the comparable values are equal."""
    last_equal: RecordedValue | None
    num_before: int
    """Values of A before the first difference, equal in both."""
    num_values: int
    """Number of values in A, and of those that only B has."""
    num_different: int
    num_incomparable: int
    """Number of values whose digests have different algorithms."""
    is_nan_payload_only: bool

    @property
    def position(self) -> float:
        """Position of the first difference; infinite if there is none."""
        return inf if self.first is None else self.first.position


def compare_columns(a: Columns, b: Columns, scopes: Iterable[Scope] = Scope) -> StepDifference:
    """Compare the values of one step of one rank, those of `scopes` only."""
    wanted = set(scopes)
    if not a.has_values_of(b):
        return compare_values(a.values(), b.values(), wanted)
    different = [index for index in _different(a.digests, b.digests) if a.scopes[index] in wanted]
    num_values = sum(a.scopes.count(scope) for scope in wanted)
    if not different:
        return StepDifference(None, None, 0, num_values, 0, 0, False)
    before = next((index for index in range(different[0] - 1, -1, -1) if a.scopes[index] in wanted), None)
    scopes_before = a.scopes[: different[0]]
    (first,) = _pairs(a, b, different[:1])
    return StepDifference(
        first=first,
        last_equal=None if before is None else a.value(before),
        num_before=sum(scopes_before.count(scope) for scope in wanted),
        num_values=num_values,
        num_different=len(different),
        num_incomparable=0,
        is_nan_payload_only=_all_nan([first]) and _all_nan(_pairs(a, b, different)),
    )


def compare_values(
    a: Sequence[RecordedValue], b: Sequence[RecordedValue], scopes: Iterable[Scope] = Scope
) -> StepDifference:
    """Compare values that may differ in key and order."""
    wanted = set(scopes)
    left = {index: value for index, value in enumerate(a) if value.scope in wanted}
    right = {index: value for index, value in enumerate(b) if value.scope in wanted}
    found, equal, num_incomparable = _differences(left, right)
    before = [index for index in equal if found and index < found[0].position]
    return StepDifference(
        first=found[0] if found else None,
        last_equal=a[max(before)] if before else None,
        num_before=len(before),
        num_values=len(left) + sum(each.what is Difference.VALUE_ONLY_IN_B for each in found),
        num_different=len(found),
        num_incomparable=num_incomparable,
        is_nan_payload_only=bool(found) and _all_nan(found),
    )


def all_differences(a: Columns, b: Columns) -> list[RecordedDifference]:
    """Return every difference of the values of one step of one rank, in their order."""
    if a.has_values_of(b):
        return list(_pairs(a, b, list(_different(a.digests, b.digests)))) if a.digests != b.digests else []
    return _differences(dict(enumerate(a.values())), dict(enumerate(b.values())))[0]


def _differences(
    left: Mapping[int, RecordedValue], right: Mapping[int, RecordedValue]
) -> tuple[list[RecordedDifference], Collection[int], int]:
    """Return (differences in their order, indices of A's values that are equal, number of incomparable values)."""
    keyed = {(value.scope, value.key): (index, value) for index, value in left.items()}
    found: list[RecordedDifference] = []
    equal: set[int] = set()
    num_incomparable, after = 0, -1.0
    for other in right.values():
        position, value = keyed.pop((other.scope, other.key), (None, None))
        if position is None or value is None:
            found.append(RecordedDifference(after + 0.5, Difference.VALUE_ONLY_IN_B, None, other))
            continue
        after = position
        if value == other:
            equal.add(position)
        elif (what := _difference(value, other)) is not None:
            found.append(RecordedDifference(position, what, value, other))
        else:
            num_incomparable += 1
    found += [RecordedDifference(at, Difference.VALUE_ONLY_IN_A, value, None) for at, value in keyed.values()]
    return sorted(found, key=lambda difference: difference.position), equal, num_incomparable


def _difference(a: RecordedValue, b: RecordedValue) -> Difference | None:
    if a.dtype != b.dtype:
        return Difference.DTYPE
    if a.shape != b.shape:
        return Difference.SHAPE
    return Difference.VALUE if a.algorithm == b.algorithm and a.digest != b.digest else None


def _different(a: bytes, b: bytes) -> Iterator[int]:
    """The indices of digests that are not the same, in order."""
    for start in range(0, len(a), _CHUNK):
        x, y = a[start : start + _CHUNK], b[start : start + _CHUNK]
        if x != y:
            is_other = map(ne, iter_unpack(f"{DIGEST_BYTES}s", x), iter_unpack(f"{DIGEST_BYTES}s", y))
            yield from compress(count(start // DIGEST_BYTES), is_other)


def _pairs(a: Columns, b: Columns, different: Sequence[int]) -> Iterator[RecordedDifference]:
    """Return the values of these increasing indices; their descriptions are equal."""
    if len(different) == 1:
        descriptions = iter([a.description(different[0])])
    else:
        chosen = set(different)
        descriptions = (text for at, text in enumerate(a.all_descriptions()) if at in chosen)
    for at, description in zip(different, descriptions, strict=True):
        yield RecordedDifference(at, Difference.VALUE, a.value(at, description), b.value(at, description))


def _all_nan(differences: Iterable[RecordedDifference]) -> bool:
    return all((value := difference.value()) and value.is_nan_payload_only for difference in differences)
