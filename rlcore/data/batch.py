"""The batch of a step: named tensors of all its samples, which nothing can be added to in place."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import torch
from torch import Tensor

from rlcore.data.scoring import Scores
from rlcore.data.trajectory import NOT_SAMPLED, Trajectory
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


def collate(sequences: Mapping[str, Sequence[Tensor]], pad_values: Mapping[str, float] | None = None) -> Batch:
    """Pad named sequences [positions, ...], one per sample, to [samples, positions, ...], and add `lengths`.

    Positions after a sample's end hold the pad value of the entry, 0 (False) by default.
    """
    values = pad_values or {}
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=values.get(name, 0))
        for name, parts in sequences.items()
    }
    lengths = {name: [len(part) for part in parts] for name, parts in sequences.items()}
    return Batch({**padded, "lengths": torch.tensor(next(iter(lengths.values())))})


_TYPECODES = {torch.bool: "B", torch.float32: "f", torch.int64: "q"}
"""Type codes of `array`, through which a list of numbers becomes a tensor in half the time."""


def dense_batch(trajectories: Sequence[Trajectory], scores: Scores, *, pad_id: int) -> Batch:
    """Build [samples, positions] of trajectories with any number of turns, and one reward per sample.

    Token t of a trajectory stands at position t, with its loss-mask bit, its sampled log-probability (0 outside the
    loss mask) and its policy version (NOT_SAMPLED in the padding).
    """
    lengths = torch.tensor([len(each.tokens) for each in trajectories])
    is_token = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)

    def padded(values: Iterable[Iterable[float]], pad: float, dtype: torch.dtype) -> Tensor:
        # All samples in one tensor, then put where they belong: a tensor per sample costs more than its values.
        flat = torch.frombuffer(array(_TYPECODES[dtype], [*chain.from_iterable(values)]), dtype=dtype)
        return torch.full(is_token.shape, pad, dtype=dtype).masked_scatter_(is_token, flat)

    loss_mask = padded((each.loss_mask for each in trajectories), False, torch.bool)
    logprobs = padded((each.logprobs for each in trajectories), 0.0, torch.float32)
    return Batch(
        {
            "tokens": padded((each.tokens for each in trajectories), pad_id, torch.int64),
            "loss_mask": loss_mask,
            "rollout_logprobs": torch.where(loss_mask, logprobs, 0.0),
            "policy_versions": padded((each.policy_versions for each in trajectories), NOT_SAMPLED, torch.int64),
            "lengths": lengths,
            "prompt_lengths": torch.tensor([each.num_prompt_tokens for each in trajectories]),
            "groups": groups_of(trajectories),
            "rewards": torch.tensor([0.0 if r is None else r for r in scores.rewards], dtype=torch.float64),
            "included": torch.tensor(scores.included),
        }
    )


def groups_of(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return int64 [samples]: the same number for trajectories that are compared with each other."""
    numbers: dict[tuple[str | int, ...], int] = {}
    return torch.tensor([numbers.setdefault(each.group, len(numbers)) for each in trajectories])
