"""Correcting for a sampler that is not quite the trainer: other kernels, another dtype, weights of some steps ago.

    log_ratio = old_logprobs - rollout_logprobs      trainer against sampler, before any update on these completions

Either tokens are weighted (importance sampling: the losses, after clipping, times the weights), or what is too far off
is not learned from (rejection: a mask). Neither carries a gradient.
"""

from torch import Tensor

from rlcore.algorithms.arguments import MAX_LOG_RATIO, check_tokens, only, sample_mean


def mismatch(old_logprobs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """The log-ratio of trainer to sampler at each loss token, [samples, positions]; 0 outside the mask.

    Both floats [samples, positions]. Raises ShapeError.
    """
    check_tokens(loss_mask, old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    return only(loss_mask, old_logprobs.detach()) - only(loss_mask, rollout_logprobs.detach())


def token_weights(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
    """exp(log_ratio) of each token, [samples, positions]: biased over a completion, of little variance.

    0 outside the mask; the log-ratio is clamped to 20 either way. Raises ShapeError.
    """
    check_tokens(loss_mask, log_ratio=log_ratio)
    return only(loss_mask, _safe(only(loss_mask, log_ratio.detach())).exp())


def sequence_weights(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
    """exp(sum of log_ratio) of the completion on each of its tokens, [samples, positions]: unbiased, of much variance.

    0 outside the mask; the sum is clamped to 20 either way. Raises ShapeError.
    """
    check_tokens(loss_mask, log_ratio=log_ratio)
    sums = only(loss_mask, log_ratio.detach()).sum(dim=-1, keepdim=True)
    return only(loss_mask, _safe(sums).exp())


def truncate(weights: Tensor, high: float) -> Tensor:
    """Weights of at most `high`; any shape. Ionides (2008), Truncated Importance Sampling."""
    return weights.clamp(max=high)


def icepop(weights: Tensor, low: float, high: float) -> Tensor:
    """Weights within [low, high], 0 where they are outside; any shape. IcePop in Ring-1T (arXiv:2510.18855)."""
    return only(~((weights < low) | (weights > high)), weights)  # a NaN stays, and is seen in the loss


def reweighted(losses: Tensor, weights: Tensor, loss_mask: Tensor) -> Tensor:
    """Losses of tokens times their weights, [samples, positions]; 0, and no gradient, where a weight is 0.

    Both floats [samples, positions]. Raises ShapeError.
    """
    check_tokens(loss_mask, losses=losses, weights=weights)
    weights = only(loss_mask, weights.detach())
    return only(weights != 0, losses) * weights


def accepted(log_ratio: Tensor, loss_mask: Tensor, *, max_mean_k3: float) -> Tensor:
    """Which tokens are near enough to learn from, bool [samples, positions], a part of the loss mask.

    A completion is accepted whole if the mean of k3 over its tokens, the estimate of KL(sampler, trainer) from the
    log-ratio clamped to 20 either way, is at most the bound. Rejecting it is no empty mask: hand the loss mask to
    `sample_shares` as it was, and losses that `reweighted` by this mask.

    Raises ShapeError.
    """
    check_tokens(loss_mask, log_ratio=log_ratio)
    d = _safe(only(loss_mask, log_ratio.detach()))
    k3 = sample_mean(loss_mask, d.exp() - 1.0 - d).unsqueeze(-1)
    return loss_mask & ~(k3 > max_mean_k3)  # a NaN stays, and is seen in the loss


def _safe(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
