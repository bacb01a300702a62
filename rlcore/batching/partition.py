"""Which samples are read together, and which worker reads what: costs balanced, budgets never exceeded.

Every function is pure arithmetic on lists: ties go by index, so that the answer is the same on any machine.
"""

import heapq
import math
from collections.abc import Sequence
from itertools import count

from rlcore.errors import InvalidValueError

_Part = tuple[float, list[int]]
"""What it costs, and its items."""


def attention_cost(length: int) -> int:
    """What a sample of so many tokens costs: products grow with it, attention with its square (verl's constants)."""
    return 24_576 * length + length * length


def balanced(costs: Sequence[float], num_parts: int, *, equal_sizes: bool) -> list[list[int]]:
    """Exactly `num_parts` lists of indices of `costs`, their sums close to each other; each index in one list.

    Karmarkar and Karp's largest differencing: partial divisions are merged, the two most uneven ones first, the
    dearest part of one with the cheapest of the other. No part costs more than another by more than the dearest item
    does. With `equal_sizes` the numbers of items differ by one at most; without, there may be empty lists. Indices
    ascend, lists ascend by their first index, empty ones come last.

    Raises InvalidValueError for less than one part and for costs that are negative or not finite. Karmarkar and Karp,
    The differencing method of set partitioning (1982); for more than two parts, Michiels et al. (2003).
    """
    _check_at_least("num_parts", num_parts, 1)
    for index, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise InvalidValueError(f"the cost of item {index} is {cost!r}", legal="0 or more, finite")
    dearest_first = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    width = num_parts if equal_sizes else 1
    serial = count()
    heap = []
    for begin in range(0, len(costs), width):
        parts: list[_Part] = [(costs[index], [index]) for index in dearest_first[begin : begin + width]]
        parts += [(0, []) for _ in range(num_parts - len(parts))]
        heap.append((parts[-1][0] - parts[0][0], next(serial), parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = _merged(heapq.heappop(heap)[2], heapq.heappop(heap)[2])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(serial), merged))
    found = [sorted(items) for _, items in heap[0][2]] if heap else [[] for _ in range(num_parts)]
    return sorted(found, key=lambda items: (not items, items))


def partition_by_budget(
    lengths: Sequence[int], *, max_tokens: int, min_parts: int = 1, multiple: int = 1
) -> list[list[int]]:
    """Lists of indices of `lengths`, none empty, none of more than `max_tokens` padded tokens; as few as there can be.

    A microbatch has as many padded tokens as it has members times its longest, rounded up to a `multiple`. The fewest
    that are possible, or `min_parts`, are balanced by `attention_cost`; where that puts too many long ones beside
    short ones, samples of like length go together instead. Indices ascend, lists ascend by their first index.

    Raises InvalidValueError for a sample that alone is above the budget, and for more parts than samples.
    """
    _check_at_least("multiple", multiple, 1)
    _check_at_least("min_parts", min_parts, 1)
    for index, length in enumerate(lengths):
        _check_at_least(f"the length of item {index}", length, 0)
        if padded_tokens([length], multiple) > max_tokens:
            raise InvalidValueError(
                f"item {index} has length {length}, padded {padded_tokens([length], multiple)}",
                legal=f"{max_tokens} tokens, the budget of a microbatch",
                remedy="a larger budget, or shorter samples",
            )
    if not lengths:
        return []
    if min_parts > len(lengths):
        raise InvalidValueError(f"min_parts is {min_parts}", legal=f"{len(lengths)} or fewer, one a sample")
    by_length = _by_length(lengths, max_tokens, min_parts, multiple)
    found = balanced([attention_cost(length) for length in lengths], len(by_length), equal_sizes=False)
    fits = all(part and padded_tokens([lengths[i] for i in part], multiple) <= max_tokens for part in found)
    return found if fits else by_length


def padded_tokens(lengths: Sequence[int], multiple: int = 1) -> int:
    """Of one pass over samples of these lengths: each is as long as the longest, rounded up, at least one multiple."""
    longest = max([1, *lengths])
    return len(lengths) * (longest + -longest % multiple)


def _merged(one: list[_Part], other: list[_Part]) -> list[_Part]:
    """The dearest part of one with the cheapest of the other, and so on; dearest first."""
    pairs = zip(one, reversed(other), strict=True)
    return sorted(((a + b, left + right) for (a, left), (b, right) in pairs), key=lambda part: (-part[0], part[1]))


def _by_length(lengths: Sequence[int], max_tokens: int, min_parts: int, multiple: int) -> list[list[int]]:
    """The fewest parts there can be, at least `min_parts`: each the longest that are left, as many as fit.

    No division has fewer: the longest sample's part can have no more members than are taken here, and what is left
    is the shortest that could be.
    """
    left = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    parts = []
    while left:
        num_fitting = max_tokens // padded_tokens([lengths[left[0]]], multiple)
        parts.append(left[:num_fitting])
        left = left[num_fitting:]
    while len(parts) < min_parts:
        largest = max(parts, key=len)
        parts.remove(largest)
        parts += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    return sorted(sorted(part) for part in parts)


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidValueError(f"{name} is {value!r}", legal=f"{least} or more")
