"""What the models say of completions: log-probabilities, entropy, values; with a gradient a lane, without one in bulk.

Everything stands at the position of the token it is about: `logprobs[:, t]` is of token t, and `values[:, t]` is the
value of what was read before it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from rlcore.batching.microbatches import Lane, lanes_by_budget
from rlcore.models.decoder import Decoder
from rlcore.models.value_head import Critic
from rlcore.numerics.log_softmax import log_softmax


class Scored(NamedTuple):
    """The policy's view of a lane's tokens, [samples, length - first]."""

    logprobs: Tensor
    entropy: Tensor
    """In nats, over the whole vocabulary at the sampling temperature."""


def score(policy: Decoder, lane: Lane, temperature: float) -> Scored:
    """Log-probabilities of a lane's tokens from its `first` on, and the entropy of what they were drawn from."""
    hidden = policy.hidden(lane.tokens[:, :-1])[:, lane.first - 1 :]
    vocabulary = log_softmax(policy.logits(hidden) / temperature)
    drawn = vocabulary.gather(-1, lane.tokens[:, lane.first :].unsqueeze(-1)).squeeze(-1)
    return Scored(drawn, -(vocabulary.exp() * vocabulary).sum(-1))


def values(critic: Critic, lane: Lane) -> Tensor:
    """What the critic expects before each of a lane's tokens from its `first` on."""
    expected: Tensor = critic(lane.tokens[:, :-1])
    return expected[:, lane.first - 1 :]


@torch.no_grad()
def in_bulk(batch: TensorDict, of_lane: Callable[[Lane], Tensor], *, microbatch_tokens: int) -> Tensor:
    """[samples, positions] of a dense batch, without a gradient, 0 where nothing is learned.

    Passes are made up to suit the budget: at level invariant a row's bits do not depend on who is in its pass.
    """
    mask = batch["loss_mask"]
    found = torch.zeros(mask.shape, device=mask.device)
    for lane in lanes_by_budget(batch, range(len(mask)), microbatch_tokens=microbatch_tokens):
        end = min(lane.tokens.shape[1], mask.shape[1])
        found[list(lane.samples), lane.first : end] = of_lane(lane).float()[:, : end - lane.first]
    return torch.where(mask, found, 0.0)
