"""Fixed microbatches: which samples are read in one pass, and how many positions of them.

At level invariant a microbatch has a fixed number of neighbours and its own length: its bits then follow from its
samples alone, whatever else is computed, by whom and when. At the other levels a microbatch is what fits into the token
budget of a forward pass.
"""

import heapq
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
    """Return what a sample of so many tokens costs: products grow with it, attention with its square (as in verl)."""
    return 24_576 * length + length * length


def balanced(costs: Sequence[float], num_parts: int) -> list[list[int]]:
    """Return exactly `num_parts` lists of indices of `costs`, their sums close to each other; each index in one list.

    No part costs more than another by more than the dearest item does. Ties go by index, so that the answer is the same
    on any machine. Indices ascend, lists ascend by their first index, empty ones come last.

    Karmarkar and Karp, The differencing method of set partitioning (1982); for more than two parts, Michiels et al.
    (2003): partial divisions are merged, the two most uneven ones first, the dearest part of one with the cheapest of
    the other.
    """
    serial = count()
    heap = []
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        parts: list[_Part] = [(costs[index], [index]), *((0, []) for _ in range(num_parts - 1))]
        heap.append((parts[-1][0] - parts[0][0], next(serial), parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        pairs = zip(heapq.heappop(heap)[2], reversed(heapq.heappop(heap)[2]), strict=True)
        merged = sorted(
            ((a + b, left + right) for (a, left), (b, right) in pairs), key=lambda part: (-part[0], part[1])
        )
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(serial), merged))
    found = [sorted(items) for _, items in heap[0][2]] if heap else [[] for _ in range(num_parts)]
    return sorted(found, key=lambda items: (not items, items))


def partition_by_budget(lengths: Sequence[int], *, max_tokens: int, multiple: int = 1) -> list[list[int]]:
    """Return lists of indices of `lengths`, none empty, none of more than `max_tokens` padded tokens, the fewest.

    A microbatch has as many padded tokens as it has members times its longest, rounded up to a `multiple`. Its costs
    are balanced by `attention_cost`; where that puts too many long ones beside short ones, samples of like length go
    together instead. Indices ascend, lists ascend by their first index.

    Raises InvalidValueError for a sample that alone is above the budget.
    """
    for index, length in enumerate(lengths):
        if (padded := padded_tokens([length], multiple)) > max_tokens:
            raise InvalidValueError(
                f"item {index} has length {length}, padded {padded}",
                legal=f"{max_tokens} tokens, the budget of a microbatch",
                remedy="a larger runtime.token_budget, or shorter samples",
            )
    # The longest that are left, as many as fit. No division has fewer parts: that of the longest sample can have no
    # more members than are taken here, and what is left is the shortest that could be.
    left = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    by_length = []
    while left:
        num_fitting = max_tokens // padded_tokens([lengths[left[0]]], multiple)
        by_length.append(sorted(left[:num_fitting]))
        left = left[num_fitting:]
    found = balanced([attention_cost(length) for length in lengths], len(by_length))
    fits = all(part and padded_tokens([lengths[i] for i in part], multiple) <= max_tokens for part in found)
    return found if fits else sorted(by_length)


def padded_tokens(lengths: Sequence[int], multiple: int = 1) -> int:
    """Return the tokens of one pass over samples: each is as long as the longest, rounded up, at least one multiple."""
    longest = max([1, *lengths])
    return len(lengths) * (longest + -longest % multiple)


LENGTH_MULTIPLE = 4
"""Multiple that a microbatch's length is rounded up to: four samples are then 16 rows, which need no padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """Samples that are read in one pass, with what is known of them and of no others."""

    number: int
    """Index of its value in the tree of additions."""
    samples: tuple[int, ...]
    """Rows of the step's batch."""
    tokens: Tensor
    """int64 [samples, length], right-padded; the model reads all but the last position."""
    first: int
    """First position that any of its samples learns from; 1 or more, since nothing predicts position 0."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """The step's batch for these samples: [samples, length - first] of [rows, positions], [samples] of [rows]."""

    @property
    def num_tokens(self) -> int:
        """Number of positions that are read, padding included."""
        return self.tokens[:, 1:].numel()

    def __contains__(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        """Return a column. Raises KeyError."""
        return self.columns[name]


def build_microbatch(batch: Batch, samples: Sequence[int], number: int) -> Microbatch:
    """Build the pass over these rows of a dense batch with `tokens`, `lengths` and `prompt_lengths`."""
    own = {name: column[list(samples)] for name, column in batch.items()}
    num_read = int(own["lengths"].max()) - 1
    length = num_read + -num_read % LENGTH_MULTIPLE + 1
    first = max(1, int(own["prompt_lengths"].min()))

    def fitted(rows: Tensor) -> Tensor:  # padded, or cut
        return torch.nn.functional.pad(rows, (0, length - rows.shape[1]))

    tokens = fitted(own.pop("tokens"))
    columns = {name: rows if rows.dim() == 1 else fitted(rows)[:, first:] for name, rows in own.items()}
    return Microbatch(number, tuple(samples), tokens, first, columns)


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
    return balanced(costs, world_size)
