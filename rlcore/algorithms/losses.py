"""Losses of a policy and of a value function; each returns losses of tokens, for `aggregation.sample_shares`.

Gradients flow through `logprobs`, or `values`, alone. Those that clip compare with the policy before the step. Those
that drop tokens compare with the sampler, where trainer and sampler no longer agree:

    d = logprobs - rollout_logprobs        r = exp(d)        dp = exp(logprobs) - exp(rollout_logprobs)

Which tokens are dropped is decided without a gradient, and never because of a NaN, which has to reach the loss and be
seen. A dropped token stays in the loss mask, and so in the denominators. Importance weights (correction.py) multiply
the losses after clipping.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.algorithms.arguments import MAX_LOG_RATIO, check_tokens, only, sample_mean

MAX_LOG_SEQUENCE_RATIO = 10.0


class Tokens(NamedTuple):
    """What a policy loss reads of a microbatch, floats [samples, positions] and a bool mask of them."""

    logprobs: Tensor
    """Of the policy as it is now; the gradient flows through them."""
    old_logprobs: Tensor
    """Of the policy before the step's first update."""
    rollout_logprobs: Tensor
    """Of the sampler."""
    advantages: Tensor
    loss_mask: Tensor


class PolicyLoss(NamedTuple):
    """Losses of tokens, and at which of them the algorithm held the policy back."""

    losses: Tensor
    """[samples, positions], 0 outside the loss mask."""
    clipped: Tensor
    """bool [samples, positions]: the ratio was clipped, or the token dropped."""
    capped: Tensor
    """bool [samples, positions]: the dual clip bounds the loss; nowhere True where there is none."""


def ppo_clip(
    tokens: Tokens, *, clip_eps_low: float = 0.2, clip_eps_high: float = 0.2, dual_clip: float | None = None
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), at most -A dual_clip where A < 0; r = exp(logprobs - old_logprobs).

    `clip_eps_high` above `clip_eps_low` is DAPO's clip-higher; `dual_clip` above 1, None for none. The log-ratio is
    clamped to 20 either way.

    Raises ShapeError. PPO (arXiv:1707.06347), equation 7; DAPO (arXiv:2503.14476),
    section 3.1; dual clip (arXiv:1912.09729).
    """
    log_ratio, advantages = _ratio_to(tokens, tokens.old_logprobs)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    losses = torch.maximum(unclipped, clipped)
    capped = torch.zeros_like(tokens.loss_mask)
    if dual_clip is not None:
        cap = -advantages * dual_clip
        capped = (advantages < 0) & (losses > cap)
        losses = torch.where(capped, cap, losses)
    return PolicyLoss(losses, clipped > unclipped, capped)


def gspo(tokens: Tokens, *, clip_eps_low: float = 3e-4, clip_eps_high: float = 4e-4) -> PolicyLoss:
    """PPO's clip on the ratio of whole completions, s = exp(mean over loss tokens of logprobs - old_logprobs).

    Each token carries s as its value and its own share of the gradient, so that tokens may differ in advantage; log s
    is clamped to at most 10. Meant for seq-mean-token-mean; the clip defaults are the paper's, of its section 5.1: a
    mean moves far less than a token does.

    Raises ShapeError. GSPO (arXiv:2507.18071), section 4.3 (GSPO-token).
    """
    log_ratio, advantages = _ratio_to(tokens, tokens.old_logprobs)
    log_sequence_ratio = sample_mean(tokens.loss_mask, log_ratio).detach().unsqueeze(-1)
    own_share = log_ratio - log_ratio.detach()  # 0, and the token's gradient
    ratio = (log_sequence_ratio + own_share).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    return PolicyLoss(torch.maximum(unclipped, clipped), clipped > unclipped, torch.zeros_like(tokens.loss_mask))


def cispo(tokens: Tokens, *, clip_eps_low: float = 1.0, clip_eps_high: float = 4.0) -> PolicyLoss:
    """-A clip(r, 1 - low, 1 + high) logprobs, the clipped ratio a constant: no token is left without a gradient.

    r and its clamp as of `ppo_clip`. By default there is no lower bound, as in the paper, which does not publish its
    upper one; a ratio of at most 5 is ScaleRL's (arXiv:2510.13786).

    Raises ShapeError. CISPO in MiniMax-M1 (arXiv:2506.13585), section 3.1.
    """
    log_ratio, advantages = _ratio_to(tokens, tokens.old_logprobs)
    ratio = log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    losses = -weight * advantages * only(tokens.loss_mask, tokens.logprobs)
    return PolicyLoss(losses, ratio != weight, torch.zeros_like(tokens.loss_mask))


def _ratio_to(tokens: Tokens, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-ratio of loss tokens to those of a reference, and their advantages; raises ShapeError."""
    check_tokens(**tokens._asdict())
    mask = tokens.loss_mask
    return only(mask, tokens.logprobs) - only(mask, reference.detach()), only(mask, tokens.advantages.detach())


def masked_is_keep(
    tokens: Tokens,
    *,
    token: tuple[float, float] = (0.125, 8.0),
    geometric: tuple[float, float] = (0.1, 10.0),
    sequence: tuple[float, float] = (0.0, 100.0),
) -> Tensor:
    """Which tokens masked importance sampling learns from, bool [samples, positions].

    Bounds (low, high) on a ratio, which may be reached, not crossed. `token`: r of the token, else it is dropped.
    `geometric`: exp(mean d) of the sample, and `sequence`: its smallest and its largest r, else all its tokens are.

    Raises ShapeError.
    """
    d, mask = _ratio_to(tokens, tokens.rollout_logprobs)[0].detach(), tokens.loss_mask
    r = d.exp()
    means = sample_mean(mask, d).exp()
    lowest = torch.where(mask, r, math.inf).amin(dim=-1)
    highest = torch.where(mask, r, -math.inf).amax(dim=-1)
    drops_sample = _outside(means, geometric) | (lowest < sequence[0]) | (highest > sequence[1])
    return mask & ~_outside(r, token) & ~drops_sample.unsqueeze(-1)


def masked_is(
    tokens: Tokens, keep: Tensor | None = None, *, proximal_coef: float = 0.0, sequence_cap: float | None = None
) -> PolicyLoss:
    """-r (A - proximal_coef d) logprobs on kept tokens, all but logprobs a constant.

    `keep` is bool, a part of the loss mask, by default that of `masked_is_keep`. Meant for token-mean, so that dropped
    tokens count in the denominator. With `sequence_cap`, r is exp(sum d) of the sample, at most the cap, and the
    sample's losses are divided by its tokens.

    Raises ShapeError. The loss of prime-rl and of surogate.
    """
    log_ratio, advantages = _ratio_to(tokens, tokens.rollout_logprobs)
    keep, d = masked_is_keep(tokens) if keep is None else keep, log_ratio.detach()
    ratio = d.exp()
    if sequence_cap is not None:
        ratio = d.sum(-1, keepdim=True).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp().clamp(max=sequence_cap)
        ratio = ratio / tokens.loss_mask.sum(-1, keepdim=True).clamp(min=1)
    losses = -only(keep, ratio * (advantages - proximal_coef * d)) * only(keep, tokens.logprobs)
    return PolicyLoss(losses, tokens.loss_mask & ~keep, torch.zeros_like(tokens.loss_mask))


def dppo_tv(
    tokens: Tokens,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    proximal_coef: float = 1e-3,
    ratio_cap: float = math.inf,
) -> PolicyLoss:
    """-A r + proximal_coef d^2, the first term dropped where it would move a probability that has moved enough.

    Dropped where A > 0 and dp > mask_high, or A <= 0 and dp < -mask_low; the second term stays. r is at most
    `ratio_cap`, in value and gradient.

    Raises ShapeError. DPPO (arXiv:2602.04879), binary total variation.
    """
    dp = _probability_change(tokens)
    drop = torch.where(tokens.advantages > 0, dp > mask_high, dp < -mask_low)
    return _proximal(tokens, drop, proximal_coef, ratio_cap)


def ipo(
    tokens: Tokens,
    *,
    mask_low: float = 0.1,
    mask_high: float = 0.1,
    proximal_coef: float = 1e-3,
    ratio_cap: float = math.inf,
) -> PolicyLoss:
    """As `dppo_tv`, but dropped where dp > mask_high or dp < -mask_low, whatever the sign of the advantage.

    Raises ShapeError. The later losses of prime-rl and of surogate.
    """
    return _proximal(tokens, _outside(_probability_change(tokens), (-mask_low, mask_high)), proximal_coef, ratio_cap)


def _proximal(tokens: Tokens, drop: Tensor, proximal_coef: float, ratio_cap: float) -> PolicyLoss:
    """-A min(r, ratio_cap) of tokens not dropped + proximal_coef d^2; a capped ratio's gradient is the cap, not 0."""
    d, advantages = _ratio_to(tokens, tokens.rollout_logprobs)
    keep = tokens.loss_mask & ~drop
    # On inputs: a dropped token's r may be infinite, and its gradient 0 * inf.
    ratio = only(keep, d).detach().exp().clamp(max=ratio_cap)
    moved = only(keep, advantages) * ratio * (1.0 + only(keep, d - d.detach()))
    return PolicyLoss(-moved + proximal_coef * d.square(), tokens.loss_mask & ~keep, torch.zeros_like(tokens.loss_mask))


def _probability_change(tokens: Tokens) -> Tensor:
    check_tokens(**tokens._asdict())
    logprobs, sampled = tokens.logprobs.detach(), tokens.rollout_logprobs.detach()
    return only(tokens.loss_mask, logprobs).exp() - only(tokens.loss_mask, sampled).exp()


def _outside(ratio: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (ratio < bounds[0]) | (ratio > bounds[1])


class ValueLoss(NamedTuple):
    """Losses of tokens, and at which of them the value was held back."""

    losses: Tensor
    """[samples, positions], 0 outside the loss mask."""
    clipped: Tensor
    """bool [samples, positions]: the loss of the clipped value is the larger one."""


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, loss_mask: Tensor, *, clip_eps: float | None = 0.2
) -> ValueLoss:
    """0.5 max((V - R)^2, (clip(V, old - eps, old + eps) - R)^2), the first alone if `clip_eps` is unset.

    All floats [samples, positions]; the gradient flows through `values`. Raises ShapeError. The clipping is that of
    OpenAI's baselines (ppo2); PPO's paper does not clip values.
    """
    check_tokens(loss_mask, values=values, old_values=old_values, returns=returns)
    values = only(loss_mask, values)
    old_values, returns = only(loss_mask, old_values.detach()), only(loss_mask, returns.detach())
    unclipped = (values - returns).square()
    if clip_eps is None:
        return ValueLoss(0.5 * unclipped, torch.zeros_like(loss_mask))
    clipped = (values.clamp(old_values - clip_eps, old_values + clip_eps) - returns).square()
    return ValueLoss(0.5 * torch.maximum(unclipped, clipped), clipped > unclipped)
