"""Completions and their rewards as one dense batch."""

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from rlcore.rewards.score import Scores
from rlcore.types import Completion


def dense_batch(completions: Sequence[Completion], scores: Scores, *, pad_id: int) -> TensorDict:
    """Build [samples, positions]: tokens of prompt and completion, sampled log-probabilities, one reward per sample."""
    pairs = [(completion.request.prompt.tokens, completion.tokens) for completion in completions]
    lengths = torch.tensor([len(prompt) + len(drawn) for prompt, drawn in pairs])
    prompt_lengths = torch.tensor([len(prompt) for prompt, _ in pairs])
    positions = torch.arange(int(lengths.max()))
    # All samples in one tensor, then put where they belong: a tensor for each of them costs more than what is in it.
    is_read = positions < lengths.unsqueeze(1)
    is_drawn = is_read & (positions >= prompt_lengths.unsqueeze(1))
    tokens = torch.tensor([token for prompt, drawn in pairs for token in (*prompt, *drawn)])
    return TensorDict(
        {
            "tokens": torch.full(is_read.shape, pad_id).masked_scatter_(is_read, tokens),
            "loss_mask": is_drawn,
            "rollout_logprobs": torch.zeros(is_read.shape).masked_scatter_(
                is_drawn, torch.cat([completion.logprobs for completion in completions])
            ),
            "lengths": lengths,
            "prompt_lengths": prompt_lengths,
            "groups": groups_of(completions),
            "rewards": torch.tensor([0.0 if r is None else r for r in scores.rewards], dtype=torch.float64),
            "included": torch.tensor(scores.included),
        },
        batch_size=[len(completions)],
    )


def groups_of(completions: Sequence[Completion]) -> Tensor:
    """Return int64 [samples]: the same number for completions of the same prompt."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(c.request.prompt.id, len(numbers)) for c in completions])
