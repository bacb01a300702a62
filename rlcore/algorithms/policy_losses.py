"""Losses of a policy against the one that made the completions: PPO's and what clips as it does.

Each returns losses of tokens, for `aggregation.sample_shares`. Gradients flow through `logprobs` alone. Importance
weights (correction.py) multiply the losses after clipping.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.algorithms.bounds import check_number
from rlcore.algorithms.masks import check_tokens, only, sample_mean

MAX_LOG_RATIO = 20.0
"""Where the log-ratio of a token is clamped, either way: exp(20) squared is still finite in float32."""
MAX_LOG_SEQUENCE_RATIO = 10.0


class PolicyLoss(NamedTuple):
    """Losses of tokens, and at which of them the algorithm held the policy back."""

    losses: Tensor
    """[samples, positions], 0 outside the loss mask."""
    clipped: Tensor
    """bool [samples, positions]: the ratio was clipped, or the token dropped."""
    capped: Tensor
    """bool [samples, positions]: the dual clip bounds the loss; nowhere True where there is none."""


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_eps_low: float = 0.2,
    clip_eps_high: float = 0.2,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), at most -A dual_clip where A < 0; r = exp(logprobs - old_logprobs).

    All floats [samples, positions]. `clip_eps_high` above `clip_eps_low` is DAPO's clip-higher; `dual_clip` above 1,
    None for none. The log-ratio is clamped to 20 either way.

    Raises ShapeError, EmptyMaskError, InvalidValueError. PPO (arXiv:1707.06347), equation 7; DAPO (arXiv:2503.14476),
    section 3.1; dual clip (arXiv:1912.09729).
    """
    check_tokens(loss_mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    _check_clip(clip_eps_low, clip_eps_high)
    advantages = only(loss_mask, advantages.detach())
    ratio = _log_ratio(logprobs, old_logprobs, loss_mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    losses = torch.maximum(unclipped, clipped)
    capped = torch.zeros_like(loss_mask)
    if dual_clip is not None:
        check_number("dual_clip", dual_clip, 1.0, open_low=True)
        cap = -advantages * dual_clip
        capped = (advantages < 0) & (losses > cap)
        losses = torch.where(capped, cap, losses)
    return PolicyLoss(losses, clipped > unclipped, capped)


def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_eps_low: float = 3e-4,
    clip_eps_high: float = 4e-4,
) -> PolicyLoss:
    """PPO's clip on the ratio of whole completions, s = exp(mean over loss tokens of logprobs - old_logprobs).

    All floats [samples, positions]. Each token carries s as its value and its own share of the gradient, so that tokens
    may differ in advantage; log s is clamped to at most 10. Meant for seq-mean-token-mean; the clip defaults are the
    paper's, of its section 5.1: a mean moves far less than a token does.

    Raises ShapeError, EmptyMaskError, InvalidValueError. GSPO (arXiv:2507.18071), section 4.3 (GSPO-token).
    """
    check_tokens(loss_mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    _check_clip(clip_eps_low, clip_eps_high)
    advantages = only(loss_mask, advantages.detach())
    log_ratio = _log_ratio(logprobs, old_logprobs, loss_mask)
    log_sequence_ratio = sample_mean(loss_mask, log_ratio).detach().unsqueeze(-1)
    own_share = log_ratio - log_ratio.detach()  # 0, and the token's gradient
    ratio = (log_sequence_ratio + own_share).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    return PolicyLoss(torch.maximum(unclipped, clipped), clipped > unclipped, torch.zeros_like(loss_mask))


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_eps_low: float = 1.0,
    clip_eps_high: float = 4.0,
) -> PolicyLoss:
    """-A clip(r, 1 - low, 1 + high) logprobs, the clipped ratio a constant: no token is left without a gradient.

    All floats [samples, positions]; r and its clamp as of `ppo_clip`. By default there is no lower bound, as in the
    paper, which does not publish its upper one; a ratio of at most 5 is ScaleRL's (arXiv:2510.13786).

    Raises ShapeError, EmptyMaskError, InvalidValueError. CISPO in MiniMax-M1 (arXiv:2506.13585), section 3.1.
    """
    check_tokens(loss_mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    _check_clip(clip_eps_low, clip_eps_high)
    ratio = _log_ratio(logprobs, old_logprobs, loss_mask).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    losses = -weight * only(loss_mask, advantages.detach()) * only(loss_mask, logprobs)
    return PolicyLoss(losses, ratio != weight, torch.zeros_like(loss_mask))


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    return only(loss_mask, logprobs) - only(loss_mask, old_logprobs.detach())


def _check_clip(clip_eps_low: float, clip_eps_high: float) -> None:
    check_number("clip_eps_low", clip_eps_low, 0.0, 1.0)
    check_number("clip_eps_high", clip_eps_high, 0.0)
