"""Trajectories and their rewards as one dense batch."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from rlcore.batching.batch import Batch
from rlcore.environments.trajectory import NOT_SAMPLED, Trajectory
from rlcore.rewards.score import Scores

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
