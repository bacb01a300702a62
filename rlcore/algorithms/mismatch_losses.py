"""Losses against the sampler's own logprobs, which drop tokens where trainer and sampler no longer agree.

    d = logprobs - rollout_logprobs        r = exp(d)        dp = exp(logprobs) - exp(rollout_logprobs)

Which tokens are dropped is decided without a gradient, and never because of a NaN, which has to reach the loss and be
seen. A dropped token stays in the loss mask, and so in the denominators.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from rlcore.algorithms.bounds import check_choice, check_number
from rlcore.algorithms.masks import check_tokens, only, sample_mean
from rlcore.algorithms.policy_losses import PolicyLoss
from rlcore.errors import InvalidValueError, ShapeError

Level = Literal["token", "sequence"]
MAX_LOG_SEQUENCE_WEIGHT = 10.0


def masked_is_keep(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    loss_mask: Tensor,
    *,
    token: tuple[float, float] = (0.125, 8.0),
    geometric: tuple[float, float] = (0.1, 10.0),
    sequence: tuple[float, float] = (0.0, 100.0),
) -> Tensor:
    """Which tokens masked importance sampling learns from, bool [samples, positions].

    Bounds (low, high) on a ratio, which may be reached, not crossed. `token`: r of the token, else it is dropped.
    `geometric`: exp(mean d) of the sample, and `sequence`: its smallest and its largest r, else all its tokens are.

    Raises ShapeError, EmptyMaskError, InvalidValueError.
    """
    check_tokens(loss_mask, logprobs=logprobs, rollout_logprobs=rollout_logprobs)
    for name, (low, high) in {"token": token, "geometric": geometric, "sequence": sequence}.items():
        check_number(f"{name} low", low, 0.0)
        check_number(f"{name} high", high, low)
    d = _log_ratio(logprobs, rollout_logprobs, loss_mask).detach()
    r = d.exp()
    means = sample_mean(loss_mask, d).exp()
    lowest = torch.where(loss_mask, r, math.inf).amin(dim=-1)
    highest = torch.where(loss_mask, r, -math.inf).amax(dim=-1)
    drops_sample = _outside(means, geometric) | (lowest < sequence[0]) | (highest > sequence[1])
    return loss_mask & ~_outside(r, token) & ~drops_sample.unsqueeze(-1)


def masked_is(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    keep: Tensor | None = None,
    *,
    level: Level = "token",
    proximal_coef: float = 0.0,
    sequence_clip_high: float = 10.0,
) -> PolicyLoss:
    """-w (A - proximal_coef d) logprobs on kept tokens, all but logprobs a constant.

    All floats [samples, positions]; `keep` bool, by default that of `masked_is_keep`. w is r at level "token"; at
    "sequence" it is min(exp(min(sum of d, 10)), sequence_clip_high) and the loss is divided by the sample's own loss
    tokens. Meant for token-mean, so that dropped tokens count in the denominator.

    Raises ShapeError, EmptyMaskError, InvalidValueError. The loss of prime-rl and of surogate.
    """
    check_tokens(loss_mask, logprobs=logprobs, rollout_logprobs=rollout_logprobs, advantages=advantages)
    check_choice("level", level, get_args(Level))
    keep = _checked_keep(masked_is_keep(logprobs, rollout_logprobs, loss_mask) if keep is None else keep, loss_mask)
    d = _log_ratio(logprobs, rollout_logprobs, loss_mask).detach()
    if level == "token":
        weight = d.exp()
    else:
        check_number("sequence_clip_high", sequence_clip_high, 0.0, open_low=True)
        weight = d.sum(dim=-1, keepdim=True).clamp(max=MAX_LOG_SEQUENCE_WEIGHT).exp().clamp(max=sequence_clip_high)
        weight = weight / loss_mask.sum(dim=-1, keepdim=True)
    coefficient = only(keep, weight * (advantages.detach() - proximal_coef * d))
    return PolicyLoss(-coefficient * only(keep, logprobs), loss_mask & ~keep, torch.zeros_like(loss_mask))


def dppo_tv(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    proximal_coef: float = 1e-3,
    ratio_cap: float = math.inf,
) -> PolicyLoss:
    """-A r + proximal_coef d^2, the first term dropped where it would move a probability that has moved enough.

    Dropped where A > 0 and dp > mask_high, or A <= 0 and dp < -mask_low; the second term stays. All floats
    [samples, positions]; r is at most `ratio_cap`, in value and gradient.

    Raises ShapeError, EmptyMaskError, InvalidValueError. DPPO (arXiv:2602.04879), binary total variation.
    """
    dp = _probability_change(logprobs, rollout_logprobs, advantages, loss_mask)
    check_number("mask_low", mask_low, 0.0)
    check_number("mask_high", mask_high, 0.0)
    drop = torch.where(advantages > 0, dp > mask_high, dp < -mask_low)
    return _proximal((logprobs, rollout_logprobs, advantages, loss_mask), drop, proximal_coef, ratio_cap)


def ipo(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    mask_low: float = 0.1,
    mask_high: float = 0.1,
    proximal_coef: float = 1e-3,
    ratio_cap: float = math.inf,
) -> PolicyLoss:
    """As `dppo_tv`, but dropped where dp > mask_high or dp < -mask_low, whatever the sign of the advantage.

    Raises ShapeError, EmptyMaskError, InvalidValueError. The later losses of prime-rl and of surogate.
    """
    dp = _probability_change(logprobs, rollout_logprobs, advantages, loss_mask)
    check_number("mask_low", mask_low, 0.0)
    check_number("mask_high", mask_high, 0.0)
    drop = _outside(dp, (-mask_low, mask_high))
    return _proximal((logprobs, rollout_logprobs, advantages, loss_mask), drop, proximal_coef, ratio_cap)


def _proximal(
    given: tuple[Tensor, Tensor, Tensor, Tensor], drop: Tensor, proximal_coef: float, ratio_cap: float
) -> PolicyLoss:
    """-A min(r, ratio_cap) of tokens not dropped + proximal_coef d^2; a capped ratio's gradient is the cap, not 0."""
    logprobs, rollout_logprobs, advantages, loss_mask = given
    check_number("ratio_cap", ratio_cap, 0.0, open_low=True)
    keep = loss_mask & ~drop
    d = _log_ratio(logprobs, rollout_logprobs, loss_mask)
    # On inputs: a dropped token's r may be infinite, and its gradient 0 * inf.
    ratio = only(keep, d).detach().exp().clamp(max=ratio_cap)
    moved = only(keep, advantages.detach()) * ratio * (1.0 + only(keep, d - d.detach()))
    return PolicyLoss(-moved + proximal_coef * d.square(), loss_mask & ~keep, torch.zeros_like(loss_mask))


def _probability_change(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    check_tokens(loss_mask, logprobs=logprobs, rollout_logprobs=rollout_logprobs, advantages=advantages)
    return only(loss_mask, logprobs.detach()).exp() - only(loss_mask, rollout_logprobs.detach()).exp()


def _log_ratio(logprobs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    return only(loss_mask, logprobs) - only(loss_mask, rollout_logprobs.detach())


def _outside(ratio: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (ratio < bounds[0]) | (ratio > bounds[1])


def _checked_keep(keep: Tensor, loss_mask: Tensor) -> Tensor:
    if keep.dtype != torch.bool or keep.shape != loss_mask.shape:
        raise ShapeError(f"keep is {keep.dtype} {list(keep.shape)}", legal=f"bool of shape {list(loss_mask.shape)}")
    if bool((keep & ~loss_mask).any()):
        raise InvalidValueError("keep holds tokens outside the loss mask", legal="a part of the loss mask")
    return keep
