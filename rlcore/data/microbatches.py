"""Fixed microbatches: which samples are read in one pass, and how many positions of them.

At level invariant a microbatch has a fixed number of neighbours and its own length: its bits then follow from its
samples alone, whatever else is computed, by whom and when. At the other levels a microbatch is what fits into the token
budget of a forward pass.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from rlcore.data.batch import Batch
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


LENGTH_MULTIPLE = 4
"""Multiple that a microbatch's length is rounded up to: four samples are then 16 rows, which need no padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """Samples that are read in one pass. When it is pickled, it takes along the rows of its own samples alone."""

    number: int
    """Index of its value in the tree of additions."""
    samples: tuple[int, ...]
    """Rows of the step's batch."""
    tokens: Tensor
    """int64 [samples, length], right-padded; the model reads all but the last position."""
    first: int
    """First position that any of its samples learns from; 1 or more, since nothing predicts position 0."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """What is known of the samples by name, [rows, ...]: the step's batch, or only the rows of these samples."""
    has_own_columns: bool = False
    """Whether the rows of `columns` are those of these samples, and no others."""

    @property
    def num_tokens(self) -> int:
        """Number of positions that are read, padding included."""
        return self.tokens[:, 1:].numel()

    def __contains__(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        """Return these samples' part of a column: [samples, length - first] of [rows, positions], [samples] of [rows].

        Raises KeyError.
        """
        column = self.columns[name]
        rows = column if self.has_own_columns else column[list(self.samples)]
        if rows.dim() == 1:
            return rows
        end = self.tokens.shape[1]
        missing = max(0, end - rows.shape[1])
        return torch.nn.functional.pad(rows, (0, missing))[:, self.first : end]

    def __reduce__(self) -> tuple[type["Microbatch"], tuple[object, ...]]:
        """Pickle it with the rows of its samples."""
        columns = self.columns
        if not self.has_own_columns:
            columns = {name: column[list(self.samples)] for name, column in columns.items() if name != "tokens"}
        return Microbatch, (self.number, self.samples, self.tokens, self.first, dict(columns), True)


def build_microbatch(batch: Batch, samples: Sequence[int], number: int) -> Microbatch:
    """Build the pass over these rows of a dense batch with `tokens`, `lengths` and `prompt_lengths`."""
    rows = list(samples)
    num_read = int(batch["lengths"][rows].max()) - 1
    length = num_read + -num_read % LENGTH_MULTIPLE + 1
    tokens = batch["tokens"][rows][:, :length]
    tokens = torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]))
    return Microbatch(number, tuple(rows), tokens, max(1, int(batch["prompt_lengths"][rows].min())), batch)


def fixed_microbatches(batch: Batch, samples: Sequence[int], size: int, *, token_budget: int) -> list[Microbatch]:
    """Divide samples into microbatches of `size` neighbours.

    Raises InvalidValueError if one has more tokens than the budget of a forward pass.
    """
    microbatches = [
        build_microbatch(batch, samples[begin : begin + size], number)
        for number, begin in enumerate(range(0, len(samples), size))
    ]
    for microbatch in microbatches:
        if microbatch.num_tokens > token_budget:
            raise InvalidValueError(
                f"runtime.token_budget {token_budget}",
                legal=f"at least {microbatch.num_tokens}, those of fixed microbatch {microbatch.number}, which is never"
                " divided",
                remedy="a smaller training.microbatch_size, which makes another run of it, or more tokens",
            )
    return microbatches


def microbatches_by_budget(batch: Batch, samples: Sequence[int], *, token_budget: int) -> list[Microbatch]:
    """Divide samples into as few passes as the token budget allows, their costs balanced."""
    lengths = [length - 1 for length in batch["lengths"][list(samples)].tolist()]
    parts = partition_by_budget(lengths, max_tokens=token_budget, multiple=LENGTH_MULTIPLE)
    return [build_microbatch(batch, [samples[index] for index in part], number) for number, part in enumerate(parts)]


def divide_among_workers(microbatches: Sequence[Microbatch], world_size: int) -> list[list[Microbatch]]:
    """Assign whole microbatches to workers, by what each costs; a worker may have none."""
    return [[microbatches[index] for index in part] for part in balanced_microbatches(microbatches, world_size)]


def balanced_microbatches(microbatches: Sequence[Microbatch], world_size: int) -> list[list[int]]:
    """Return the indices of the microbatches that each worker computes, as `divide_among_workers` assigns them.

    A `PartitionRule` of dispatch tables.
    """
    costs = [len(each.samples) * attention_cost(each.tokens.shape[1]) for each in microbatches]
    return balanced(costs, world_size, equal_sizes=False)
