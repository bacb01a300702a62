"""The samples of a batch as a model reads them, and in which passes: whole lanes at level invariant.

A lane is `width` neighbours of the canonical order, padded to a length that its own longest sample decides. A sample's
last token is predicted and never read. The gradient of a lane is one product over its rows, so its members are a part
of what a run is. Which worker has a lane, and when, is not: `rlcore.numerics.tree_sum` adds lanes in one order.

At the other levels a pass is what fits into a microbatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from rlcore.batching.partition import attention_cost, lanes_of_workers, microbatches
from rlcore.errors import InvalidValueError

LENGTH_MULTIPLE = 4
"""Of what a pass reads of a sample: four samples then are a multiple of 16 rows, which no recipe has to pad."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Samples that are read in one pass."""

    number: int
    """Its leaf in the tree of additions."""
    samples: tuple[int, ...]
    """Rows of the batch."""
    tokens: Tensor
    """int64 [samples, length], padded behind; all but the last position are read."""
    first: int
    """The first position that any of its samples learns from; 1 or more, since nothing predicts position 0."""

    @property
    def num_tokens(self) -> int:
        """That are read, padding included."""
        return self.tokens[:, 1:].numel()

    def of(self, values: Tensor) -> Tensor:
        """This lane's part of a dense [batch, positions], [samples, length - first]; of a [batch], [samples]."""
        rows = values[list(self.samples)]
        if rows.dim() == 1:
            return rows
        end = self.tokens.shape[1]
        missing = max(0, end - rows.shape[1])
        return torch.nn.functional.pad(rows, (0, missing))[:, self.first : end]


def lane_of(batch: TensorDict, samples: Sequence[int], number: int) -> Lane:
    """The pass over these rows of a dense batch with `tokens`, `lengths` and `prompt_lengths`."""
    rows = list(samples)
    num_read = int(batch["lengths"][rows].max()) - 1
    length = num_read + -num_read % LENGTH_MULTIPLE + 1
    tokens = batch["tokens"][rows][:, :length]
    tokens = torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]))
    return Lane(number, tuple(rows), tokens, max(1, int(batch["prompt_lengths"][rows].min())))


def lanes_in_order(batch: TensorDict, samples: Sequence[int], width: int, *, microbatch_tokens: int) -> list[Lane]:
    """Lanes of `width` neighbours. Raises InvalidValueError where one is larger than a microbatch may be."""
    lanes = [
        lane_of(batch, samples[begin : begin + width], number)
        for number, begin in enumerate(range(0, len(samples), width))
    ]
    for lane in lanes:
        if lane.num_tokens > microbatch_tokens:
            raise InvalidValueError(
                f"perturbation.microbatch_tokens {microbatch_tokens}",
                legal=f"at least {lane.num_tokens}, those of lane {lane.number}: a lane is never divided",
                remedy="a smaller training.lane_width, which makes another run of it, or more tokens",
            )
    return lanes


def lanes_by_budget(batch: TensorDict, samples: Sequence[int], *, microbatch_tokens: int) -> list[Lane]:
    """As few passes as `microbatches` finds within the budget, their costs balanced; levels off and rerun."""
    lengths = [length - 1 for length in batch["lengths"][list(samples)].tolist()]
    parts = microbatches(lengths, max_tokens=microbatch_tokens, multiple=LENGTH_MULTIPLE)
    return [lane_of(batch, [samples[index] for index in part], number) for number, part in enumerate(parts)]


def of_workers(lanes: Sequence[Lane], world_size: int) -> list[list[Lane]]:
    """Whole lanes, divided among workers by what they cost."""
    costs = [len(lane.samples) * attention_cost(lane.tokens.shape[1]) for lane in lanes]
    return [[lanes[index] for index in part] for part in lanes_of_workers(costs, world_size)]
