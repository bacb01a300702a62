"""What models compute of completions: log-probabilities, entropy, values; per microbatch with a gradient, or in bulk.

A value stands at the position of the token it is about: `logprobs[:, t]` is of token t, and `values[:, t]` is the value
of what was read before it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch, microbatches_by_budget
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import log_softmax
from rlcore.trainers.gradients import Reading
from rlcore.trainers.trainer import Trainer


class Scored(NamedTuple):
    """The policy's view of a microbatch's tokens, [samples, length - first]."""

    logprobs: Tensor
    entropy: Tensor
    """Entropy in nats, over the whole vocabulary at the sampling temperature."""


def score(policy: nn.Module, microbatch: Microbatch, temperature: float) -> Scored:
    """Compute log-probabilities of the tokens from `first` on, and the entropy of what they were drawn from."""
    assert isinstance(policy, Decoder)
    hidden = policy.hidden(microbatch.tokens[:, :-1])[:, microbatch.first - 1 :]
    vocabulary = log_softmax(policy.logits(hidden) / temperature)
    drawn = vocabulary.gather(-1, microbatch.tokens[:, microbatch.first :].unsqueeze(-1)).squeeze(-1)
    return Scored(drawn, -(vocabulary.exp() * vocabulary).sum(-1))


def values(critic: nn.Module, microbatch: Microbatch) -> Tensor:
    """Compute what the critic expects before each of the tokens from `first` on."""
    expected: Tensor = critic(microbatch.tokens[:, :-1])
    return expected[:, microbatch.first - 1 :]


def in_bulk(batch: Batch, reader: Trainer, reading: Reading, *, token_budget: int) -> Tensor:
    """Read [samples, positions] of a dense batch, without a gradient, 0 where nothing is learned.

    Passes are made up to suit the budget: at level invariant a row's bits do not depend on which rows share its pass.
    """
    mask = batch["loss_mask"]
    found = torch.zeros(mask.shape, device=mask.device)
    microbatches = microbatches_by_budget(batch, range(len(mask)), token_budget=token_budget)
    for microbatch, part in zip(microbatches, reader.read(microbatches, reading), strict=True):
        end = min(microbatch.tokens.shape[1], mask.shape[1])
        found[list(microbatch.samples), microbatch.first : end] = part.float()[:, : end - microbatch.first]
    return torch.where(mask, found, 0.0)
