"""Which rank computes which fixed microbatch of an update: agreed upon before the first pass.

Ranks that disagree would wait for each other until the process group's timeout, or add up a wrong sum without a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.trainers.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Assignment:
    """The fixed microbatches of an update by rank."""

    num_microbatches: int
    """Number of values in the canonical tree; some may be absent."""
    numbers: tuple[tuple[int, ...], ...]
    """Numbers of the microbatches of each rank, ascending."""

    @property
    def num_rounds(self) -> int:
        """Passes that every rank makes where they are made in lockstep; 1 if there is no microbatch."""
        return max(1, *map(len, self.numbers))

    def in_round(self, number: int) -> tuple[int | None, ...]:
        """Return the microbatch that each rank computes in a round; None for a dummy pass."""
        return tuple(own[number] if number < len(own) else None for own in self.numbers)

    def of(self, ranks: Sequence[int]) -> "Assignment":
        """Return the part of these ranks."""
        return Assignment(self.num_microbatches, tuple(self.numbers[rank] for rank in ranks))


def agree_on_assignment(ranks: Ranks, own: Sequence[int], num_microbatches: int) -> Assignment:
    """Agree on what each rank computes, and check it.

    Raises InvalidValueError on every rank, at once, if they expect different numbers of microbatches, or if a
    microbatch is not one of these or has two ranks.
    """
    check_counts(ranks, num_microbatches)
    if num_microbatches < 1:
        raise InvalidValueError(f"{num_microbatches} microbatches", legal="1 or more, over all ranks")
    marks = torch.zeros(num_microbatches + 1, dtype=torch.int64, device=ranks.device)
    for number in own:
        marks[number if 0 <= number < num_microbatches else num_microbatches] += 1
    by_rank = torch.stack(ranks.gather(marks)).tolist()
    _check_marks(by_rank, num_microbatches)
    numbers = (tuple(number for number in range(num_microbatches) if counts[number]) for counts in by_rank)
    return Assignment(num_microbatches, tuple(numbers))


def check_counts(ranks: Ranks, num_microbatches: int) -> None:
    """Check that all ranks expect as many microbatches; raise InvalidValueError on every rank if not."""
    smallest, largest = ranks.extent(num_microbatches)
    if smallest != largest:
        counts = [int(count) for (count,) in ranks.gather_numbers([num_microbatches])]
        raise InvalidValueError(
            f"ranks expect different numbers of microbatches: {_by_rank(counts)}",
            legal="one number on all ranks: that of the whole minibatch",
            remedy="divide one list of microbatches among the ranks, and pass its length to each of them",
        )


def agree_on_failure(ranks: Ranks, failed: tuple[int, NonFiniteError] | None) -> None:
    """Raise, on every rank, the error of the first microbatch whose loss is not finite, if there is one."""
    none = torch.iinfo(torch.int64).max
    own = none if failed is None else failed[0]
    first, _ = ranks.extent(own)
    if first == none:
        return
    (source,) = [rank for rank, (is_mine,) in enumerate(ranks.gather_numbers([own == first])) if is_mine]
    what, remedy, phases = ranks.broadcast(failed and (failed[1].what, failed[1].remedy, failed[1].phases), source)
    raise NonFiniteError(what, remedy=remedy, phases=phases)


def _check_marks(by_rank: Sequence[Sequence[int]], num_microbatches: int) -> None:
    for number in range(num_microbatches):
        owners = [rank for rank, counts in enumerate(by_rank) for _ in range(counts[number])]
        if len(owners) > 1:
            raise InvalidValueError(
                f"microbatch {number} was given to ranks {owners}", legal="each microbatch to one rank, once"
            )
    if any(counts[num_microbatches] for counts in by_rank):
        strangers = [counts[num_microbatches] for counts in by_rank]
        raise InvalidValueError(
            f"microbatches whose number is not of this minibatch: {_by_rank(strangers)}",
            legal=f"0 to {num_microbatches - 1}",
        )


def _by_rank(counts: Sequence[int]) -> str:
    return ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
