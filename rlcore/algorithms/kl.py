"""How far the policy is from the reference, from the tokens it sampled; and how strongly that is held against it.

With d = logprobs - ref_logprobs, over tokens of the policy (J. Schulman, Approximating KL Divergence, 2020):

    k1   d                    unbiased; as a loss its gradient has mean 0
    abs  |d|
    k2   d^2 / 2              biased; its gradient has that of KL(policy, reference) as its mean
    k3   exp(-d) - 1 + d      unbiased, never negative; its gradient has that of KL(reference, policy)
    k1+, abs+, k3+            the value of the first, the gradient of k2 (straight-through)

In a loss, k2 or one with a plus has the gradient of what it estimates, and k3, GRPO's own and the default, another; in
rewards, where no gradient flows, k1 is usual. Of tokens that an earlier policy
sampled, each is the estimate of KL(policy, reference) once it is weighted by policy / earlier policy: the gradient of
k1 and k3 is then unbiased too, since it flows through the weight (DeepSeek-V3.2, arXiv:2512.02556, equation 7).
"""

import math
from typing import Literal

from torch import Tensor

from rlcore.algorithms.arguments import MAX_LOG_RATIO, check_tokens, only
from rlcore.errors import InvalidValueError, NonFiniteError

Estimator = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]
MAX_K3 = 10.0
MAX_ERROR = 0.2


def approx_kl(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    loss_mask: Tensor,
    estimator: Estimator = "k3",
    *,
    old_logprobs: Tensor | None = None,
) -> Tensor:
    """The estimate at each loss token, [samples, positions], 0 outside the mask.

    All floats [samples, positions]; the gradient flows through `logprobs`. With `old_logprobs`, those of the policy
    that sampled, it is weighted by policy / old policy. For k3 the log-ratio is clamped to 20 either way, and the
    estimate to 10. Raises ShapeError.
    """
    check_tokens(loss_mask, logprobs=logprobs, ref_logprobs=ref_logprobs)
    d = only(loss_mask, logprobs) - only(loss_mask, ref_logprobs.detach())
    k2 = 0.5 * d.square()
    match estimator.removesuffix("+"):
        case "k1":
            value = d
        case "abs":
            value = d.abs()
        case "k2":
            value = k2
        case _:
            log_ratio = (-d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            value = (log_ratio.exp() - 1.0 - log_ratio).clamp(max=MAX_K3)
    estimate = value.detach() + (k2 - k2.detach()) if estimator.endswith("+") else value
    if old_logprobs is None:
        return estimate
    check_tokens(loss_mask, old_logprobs=old_logprobs)
    log_weight = only(loss_mask, logprobs) - only(loss_mask, old_logprobs.detach())
    weight = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    # The gradient of k2 is that of the KL for tokens of the policy: the weight only says how many of them there are.
    return estimate * (weight.detach() if estimator == "k2" or estimator.endswith("+") else weight)


def in_rewards(
    token_rewards: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    loss_mask: Tensor,
    *,
    kl_coef: float,
    estimator: Estimator = "k1",
) -> Tensor:
    """token_rewards - kl_coef KL at each loss token, without gradient, [samples, positions]; 0 outside the mask.

    All floats [samples, positions]. Raises ShapeError. InstructGPT (arXiv:2203.02155), equation 2.
    """
    check_tokens(loss_mask, token_rewards=token_rewards)
    penalty = kl_coef * approx_kl(old_logprobs.detach(), ref_logprobs, loss_mask, estimator)
    return only(loss_mask, token_rewards.detach()) - penalty


def adaptive_kl_coef(kl_coef: float, current_kl: float, *, target_kl: float, num_samples: int, horizon: int) -> float:
    """The coefficient of the next step: larger where the KL was above its target, smaller where it was below.

    kl_coef (1 + clip(current_kl / target_kl - 1, -0.2, 0.2) num_samples / horizon). A fixed coefficient needs no
    function. Raises InvalidValueError, and NonFiniteError for a KL that would spoil the coefficient for good. Ziegler
    et al. (arXiv:1909.08593), section 2.2.
    """
    if num_samples > 5 * horizon:  # beyond, a coefficient could become negative
        raise InvalidValueError(f"num_samples is {num_samples}", legal=f"at most {5 * horizon}, 5 times the horizon")
    if not math.isfinite(current_kl):
        raise NonFiniteError(f"current_kl is {current_kl}", legal="a finite number", remedy="stop at the first NaN")
    error = min(max(current_kl / target_kl - 1.0, -MAX_ERROR), MAX_ERROR)
    return kl_coef * (1.0 + error * num_samples / horizon)
