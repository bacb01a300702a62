"""The loss of a value function that may not move far in one step."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.algorithms.bounds import check_number
from rlcore.algorithms.masks import check_tokens, only


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

    All floats [samples, positions]; the gradient flows through `values`. Raises ShapeError, EmptyMaskError,
    InvalidValueError. The clipping is that of OpenAI's baselines (ppo2); PPO's paper does not clip values.
    """
    check_tokens(loss_mask, values=values, old_values=old_values, returns=returns)
    values = only(loss_mask, values)
    old_values, returns = only(loss_mask, old_values.detach()), only(loss_mask, returns.detach())
    unclipped = (values - returns).square()
    if clip_eps is None:
        return ValueLoss(0.5 * unclipped, torch.zeros_like(loss_mask))
    check_number("clip_eps", clip_eps, 0.0)
    clipped = (values.clamp(old_values - clip_eps, old_values + clip_eps) - returns).square()
    return ValueLoss(0.5 * torch.maximum(unclipped, clipped), clipped > unclipped)
