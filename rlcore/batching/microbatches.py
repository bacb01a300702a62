"""Fixed microbatches: which samples are read in one pass, and how many positions of them.

At level invariant a microbatch has a fixed number of neighbours and its own length: its bits then follow from its
samples alone, whatever else is computed, by whom and when. At the other levels a microbatch is what fits into the token
budget of a forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlcore.batching.batch import Batch
from rlcore.batching.partition import attention_cost, balanced, partition_by_budget
from rlcore.errors import InvalidValueError

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
