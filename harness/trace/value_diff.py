"""Comparison of two lists of values of one step: which differ, and which of them came first. Pure.

Values are paired by scope and key, not by position; position decides which difference came first.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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
        return _compare_unlike_columns(a, b, wanted)
    different = list(_different(a.digests, b.digests))
    if len(wanted) < len(Scope):
        different = [index for index in different if a.scopes[index] in wanted]
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


def all_differences(a: Columns, b: Columns) -> list[RecordedDifference]:
    """Return every difference of the values of one step of one rank, in their order."""
    if a.has_values_of(b):
        return list(_pairs(a, b, list(_different(a.digests, b.digests)))) if a.digests != b.digests else []
    left, right = dict(enumerate(a.values())), dict(enumerate(b.values()))
    return _differences(left, right, left.__getitem__, right.__getitem__)[0]


def compare_values(
    a: Sequence[RecordedValue], b: Sequence[RecordedValue], scopes: Iterable[Scope] = Scope
) -> StepDifference:
    """Compare values that may differ in key and order."""
    wanted = set(scopes)
    left = {index: recorded_value for index, recorded_value in enumerate(a) if recorded_value.scope in wanted}
    right = {index: recorded_value for index, recorded_value in enumerate(b) if recorded_value.scope in wanted}
    return _compare_unlike(left, right, lambda index: a[index], lambda index: b[index])


def _compare_unlike_columns(a: Columns, b: Columns, wanted: set[Scope]) -> StepDifference:
    """Compare values that may differ in key; only unequal ones are decoded."""
    descriptions_a, descriptions_b = list(a.all_descriptions()), list(b.all_descriptions())
    unpacked = f"{DIGEST_BYTES}s"
    left, right = (
        {
            index: whole
            for index, whole in enumerate(
                zip(each.scopes, iter_unpack(unpacked, each.digests), descriptions, strict=True)
            )
            if whole[0] in wanted
        }
        for each, descriptions in ((a, descriptions_a), (b, descriptions_b))
    )
    return _compare_unlike(
        left,
        right,
        lambda index: a.value(index, descriptions_a[index]),
        lambda index: b.value(index, descriptions_b[index]),
    )


def _differences(
    left: Mapping[int, Hashable],
    right: Mapping[int, Hashable],
    value_a: Callable[[int], RecordedValue],
    value_b: Callable[[int], RecordedValue],
) -> tuple[list[RecordedDifference], dict[int, int], int]:
    """Return (differences in their order, index in A of each equal value by its index in B, incomparable values)."""
    index_of = {whole: index for index, whole in left.items()}
    alike = {index: index_of.pop(whole) for index, whole in right.items() if whole in index_of}
    unlike = {
        (recorded_value.scope, recorded_value.key): (index, recorded_value)
        for index in sorted(index_of.values())
        for recorded_value in [value_a(index)]
    }
    found: list[RecordedDifference] = []
    num_incomparable = 0
    after = -1.0
    for index in right:
        if index in alike:
            after = alike[index]
            continue
        other = value_b(index)
        position, recorded_value = unlike.pop((other.scope, other.key), (None, None))
        if position is None or recorded_value is None:
            found.append(RecordedDifference(after + 0.5, Difference.VALUE_ONLY_IN_B, None, other))
            continue
        after = position
        if (what := _difference(recorded_value, other)) is not None:
            found.append(RecordedDifference(position, what, recorded_value, other))
        else:
            num_incomparable += 1
    found += [
        RecordedDifference(position, Difference.VALUE_ONLY_IN_A, recorded_value, None)
        for position, recorded_value in unlike.values()
    ]
    found.sort(key=lambda difference: difference.position)
    return found, alike, num_incomparable


def _compare_unlike(
    left: Mapping[int, Hashable],
    right: Mapping[int, Hashable],
    value_a: Callable[[int], RecordedValue],
    value_b: Callable[[int], RecordedValue],
) -> StepDifference:
    """`left` and `right` are the values by index, in any form that is equal if the values are."""
    found, alike, num_incomparable = _differences(left, right, value_a, value_b)
    before = [index for index in alike.values() if found and index < found[0].position]
    return StepDifference(
        first=found[0] if found else None,
        last_equal=value_a(max(before)) if before else None,
        num_before=len(before),
        num_values=len(left) + sum(each.what is Difference.VALUE_ONLY_IN_B for each in found),
        num_different=len(found),
        num_incomparable=num_incomparable,
        is_nan_payload_only=bool(found) and _all_nan(found),
    )


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
