"""Served by an interpreter that has verl 0.9.1: its functions by our names for their arguments, its numbers untouched.

Masks and samples are verl's: float masks, rewards of tokens, an array of objects for the groups.
"""

from typing import Any

import numpy as np
import verl.utils.torch_functional as verl_functional
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config.actor import ActorConfig

GROUP_RELATIVE = {
    "grpo": core_algos.compute_grpo_outcome_advantage,
    "reinforce_pp_baseline": core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage,
    "rloo": core_algos.compute_rloo_outcome_advantage,
    "rloo_vectorized": core_algos.compute_rloo_vectorized_outcome_advantage,
}


def group_relative(
    estimator: str, token_rewards: Tensor, groups: Tensor, loss_mask: Tensor, divides_by_std: bool = True
) -> dict[str, Any]:
    """Advantages [samples, positions] from rewards of tokens, which verl sums."""
    index = np.array([str(group) for group in groups.tolist()], dtype=object)
    options = {"norm_adv_by_std_in_grpo": divides_by_std} if estimator == "grpo" else {}
    advantages, _ = GROUP_RELATIVE[estimator](
        token_rewards.clone(), _floats(loss_mask, token_rewards), index, **options
    )
    return {"advantages": advantages}


def gae(token_rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float) -> dict[str, Any]:
    """Whitened advantages, and returns."""
    found = core_algos.compute_gae_advantage_return(token_rewards, values, _floats(loss_mask, values), gamma, lam)
    return dict(zip(("advantages", "returns"), found, strict=True))


def remax(token_rewards: Tensor, baselines: Tensor, loss_mask: Tensor) -> dict[str, Any]:
    """Returns less the baseline, and returns."""
    found = core_algos.compute_remax_outcome_advantage(token_rewards, baselines, _floats(loss_mask, baselines))
    return dict(zip(("advantages", "returns"), found, strict=True))


def whiten(values: Tensor, loss_mask: Tensor) -> dict[str, Any]:
    """(value - mean) / std over the mask."""
    return {"values": verl_functional.masked_whiten(values, _floats(loss_mask, values))}


def policy_loss(
    name: str,
    tensors: dict[str, Tensor],
    loss_mask: Tensor,
    *,
    mode: str,
    options: dict[str, float],
    batch: dict[str, float],
) -> dict[str, Any]:
    """The aggregated loss, its gradient, and verl's metrics; `batch` is what verl knows of the whole batch."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    config.global_batch_info.update(batch)
    leaf = tensors["logprobs"].clone().requires_grad_()
    compute = core_algos.get_policy_loss_fn(name)
    mask = _floats(loss_mask, leaf)
    loss, metrics = compute(
        tensors["old_logprobs"], leaf, tensors["advantages"], mask, mode, config, tensors.get("weights")
    )
    loss.backward()
    return {"loss": loss, "gradient": leaf.grad, "metrics": metrics}


def aggregate(losses: Tensor, loss_mask: Tensor, mode: str, batch: dict[str, float]) -> dict[str, Any]:
    """One number."""
    return {"loss": core_algos.agg_loss(losses, _floats(loss_mask, losses), mode, **batch)}


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, loss_mask: Tensor, *, clip_eps: float, mode: str
) -> dict[str, Any]:
    """The aggregated loss, its gradient, and the share that was clipped."""
    leaf = values.clone().requires_grad_()
    mask = _floats(loss_mask, values)
    loss, clipped = core_algos.compute_value_loss(leaf, returns, old_values, mask, clip_eps, mode)
    loss.backward()
    return {"loss": loss, "gradient": leaf.grad, "clipped": clipped}


def approx_kl(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> dict[str, Any]:
    """The estimate at every token, and the gradient of its sum."""
    leaf = logprobs.clone().requires_grad_()
    estimate = core_algos.kl_penalty(leaf, ref_logprobs, estimator)
    estimate.sum().backward()
    return {"estimate": estimate, "gradient": leaf.grad}


def in_rewards(token_rewards: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, kl_coef: float) -> dict[str, Any]:
    """Rewards of tokens less the penalty, everywhere."""
    return {"rewards": core_algos.compute_rewards(token_rewards, old_logprobs, ref_logprobs, kl_coef)}


def adaptive_kl_coef(
    kl_coef: float, current_kls: list[float], target_kl: float, num_samples: int, horizon: int
) -> dict[str, Any]:
    """The coefficient after each of these steps."""
    controller = core_algos.AdaptiveKLController(kl_coef, target_kl, horizon)
    coefficients = []
    for current_kl in current_kls:
        controller.update(current_kl, num_samples)
        coefficients.append(float(controller.value))
    return {"coefficients": coefficients}


def weights(log_ratio: Tensor, loss_mask: Tensor, level: str, threshold: str) -> dict[str, Any]:
    """Importance weights, truncated at one threshold or dropped outside of two."""
    found, _ = compute_rollout_correction_weights(log_ratio, _floats(loss_mask, log_ratio), level, threshold)
    return {"weights": found}


def accepted(log_ratio: Tensor, loss_mask: Tensor, option: str, threshold: str) -> dict[str, Any]:
    """The mask that rejection leaves."""
    found, _ = compute_rollout_rejection_mask(log_ratio, _floats(loss_mask, log_ratio), option, threshold)
    return {"mask": found > 0}


def _floats(loss_mask: Tensor, like: Tensor) -> Tensor:
    return loss_mask.to(like.dtype)


FUNCTIONS = {
    each.__name__: each
    for each in (
        group_relative,
        gae,
        remax,
        whiten,
        policy_loss,
        aggregate,
        value_loss,
        approx_kl,
        in_rewards,
        adaptive_kl_coef,
        weights,
        accepted,
    )
}
