"""Finds the smallest set that still fails, and the simplest values in it. Pure: the caller runs each test.

    search = ddmin("abcdef")
    answer = next(search)                 # a smaller set: does it fail?
    answer = search.send(True)            # ... until StopIteration, whose value is the result

A. Zeller, R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28 (2), 2002: ddmin, with its
answers remembered. Every set that is asked for is smaller than the last that failed, so that a search stopped in the
middle has that one. A predicate that is not the same twice can make the result larger than need be, never one that was
not seen to fail.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")
Search = Generator[tuple[T, ...], bool, tuple[T, ...]]
"""Yields what it wants to know of, is sent whether that fails."""


def ddmin(items: Sequence[T]) -> Search[T]:
    """A subset of items that fail together, none of which can be left out; in their order."""
    current, num_parts = tuple(items), 2
    answers: dict[tuple[T, ...], bool] = {}
    while len(current) > 1:
        parts = _cut(current, num_parts)
        complements = [_without(current, part) for part in parts] if num_parts > 2 else []
        for candidate in (*parts, *complements):
            if candidate not in answers:
                answers[candidate] = yield candidate
            if answers[candidate]:
                num_parts = 2 if candidate in parts else max(num_parts - 1, 2)
                current = candidate
                break
        else:
            if num_parts == len(current):
                return current
            num_parts = min(2 * num_parts, len(current))
    return current


def simplify(
    values: Mapping[str, Any], simpler: Callable[[str, Any], Iterable[Any]]
) -> Generator[dict[str, Any], bool, dict[str, Any]]:
    """The same names with the simplest values that still fail: each name's candidates in turn, the simplest first."""
    current = dict(values)
    for name in values:
        for value in simpler(name, current[name]):
            candidate = {**current, name: value}
            if (yield candidate):
                current = candidate
                break
    return current


def _cut(items: tuple[T, ...], num_parts: int) -> list[tuple[T, ...]]:
    """Parts of nearly one size, in order."""
    edges = [len(items) * index // num_parts for index in range(num_parts + 1)]
    return [items[first:last] for first, last in pairwise(edges)]


def _without(items: tuple[T, ...], part: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(item for item in items if item not in part)
