"""The batch of a step: named tensors of all its samples, which nothing can be added to in place."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import torch
from torch import Tensor

from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory
from rlcore.errors import ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Mapping[str, Tensor]):
    """An immutable mapping of names to tensors [samples, ...]. A stage that adds entries returns a batch of its own.

    Raises ShapeError if entries disagree on the number of samples.
    """

    entries: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        sizes = {name: tuple(entry.shape[:1]) for name, entry in self.entries.items()}
        if len(set(sizes.values())) > 1 or () in sizes.values():
            raise ShapeError(f"entries of a batch have sizes {sizes}", legal="the same number of samples")
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))

    def __getitem__(self, name: str) -> Tensor:
        """Return an entry."""
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def extended(self, **entries: Tensor) -> "Batch":
        """Return a batch with these entries too; an entry of the same name is replaced."""
        return Batch({**self.entries, **entries})

    def to(self, device: str | torch.device) -> "Batch":
        """Return a batch with all tensors on a device; those that are there already are shared."""
        return Batch({name: entry.to(device) for name, entry in self.entries.items()})


_TYPECODES = {torch.float32: "f", torch.int64: "q"}
"""Type codes of `array`, through which a list of numbers becomes a tensor in half the time."""


def token_batch(tokens: Sequence[Sequence[int]], first_learned: Sequence[int], *, pad_id: int) -> Batch:
    """Build right-padded `tokens` and `loss_mask` [samples, positions] and `lengths` [samples].

    `first_learned` is the position of the first token of each sample that is learned, with all after it.
    """
    lengths = torch.tensor([len(each) for each in tokens])
    positions = torch.arange(int(lengths.max()))
    is_token = positions < lengths.unsqueeze(1)
    loss_mask = is_token & (positions >= torch.tensor(first_learned).unsqueeze(1))
    return Batch({"tokens": _placed(is_token, tokens, torch.int64, pad_id), "loss_mask": loss_mask, "lengths": lengths})


def _placed(mask: Tensor, values: Iterable[Iterable[float]], dtype: torch.dtype, pad: float) -> Tensor:
    """Return a tensor with the values of each row where the mask is set, and the pad value elsewhere."""
    # All samples in one tensor, then put where they belong: a tensor per sample costs more than its values.
    flat = torch.frombuffer(array(_TYPECODES[dtype], [*chain.from_iterable(values)]), dtype=dtype)
    return torch.full(mask.shape, pad, dtype=dtype).masked_scatter_(mask, flat)


def dense_batch(trajectories: Sequence[Trajectory], scores: Scores, *, pad_id: int) -> Batch:
    """Build [samples, positions] of trajectories, and one reward per sample.

    Token t of a trajectory stands at position t, with its loss-mask bit and its sampled log-probability (0 outside the
    loss mask).
    """
    batch = token_batch(
        [each.tokens for each in trajectories], [each.first_learned for each in trajectories], pad_id=pad_id
    )
    learned = (each.logprobs[each.first_learned :] for each in trajectories)
    return batch.extended(
        rollout_logprobs=_placed(batch["loss_mask"], learned, torch.float32, 0.0),
        prompt_lengths=torch.tensor([each.num_prompt_tokens for each in trajectories]),
        groups=groups_of(trajectories),
        rewards=torch.tensor([0.0 if r is None else r for r in scores.rewards], dtype=torch.float64),
        included=torch.tensor(scores.included),
    )


def groups_of(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return int64 [samples]: the same number for trajectories that are compared with each other."""
    numbers: dict[tuple[str | int, ...], int] = {}
    return torch.tensor([numbers.setdefault(each.group, len(numbers)) for each in trajectories])
