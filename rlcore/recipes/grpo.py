"""One step of GRPO: group-relative advantages, a clipped ratio, no critic. DeepSeekMath (arXiv:2402.03300),
algorithm 1.

Departures from the paper, each of them a setting: losses are divided by the tokens of the whole minibatch (token-mean)
where the paper takes a mean of means; the KL term is off unless asked for; rewards are of outcomes, not of processes.
"""

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from rlcore.algorithms import advantages
from rlcore.algorithms.aggregation import Denominators
from rlcore.algorithms.kl import approx_kl
from rlcore.algorithms.mismatch_losses import dppo_tv, ipo, masked_is
from rlcore.algorithms.policy_losses import PolicyLoss, cispo, gspo, ppo_clip
from rlcore.config import GrpoSection, RunConfig
from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch
from rlcore.data.minibatches import minibatches
from rlcore.observability.events import AdvantagesEstimated, GroupAdvantagesEstimated
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.greedy_baseline import add_greedy_rewards
from rlcore.recipes.policy_pass import PolicyView, add_old_logprobs, add_ref_logprobs, view_policy
from rlcore.recipes.rollout import rollout
from rlcore.recipes.update import update
from rlcore.train_state import TrainState
from rlcore.trainers.gradients import MicrobatchLoss

LOSSES: Mapping[str, tuple[Callable[..., PolicyLoss], bool]] = {
    "ppo_clip": (ppo_clip, False),
    "gspo": (gspo, False),
    "cispo": (cispo, False),
    "dppo_tv": (dppo_tv, True),
    "ipo": (ipo, True),
    "masked_is": (masked_is, True),
}
"""Losses by name, and whether each compares with the sampler, not with the policy before the step."""
LOSS_SETTINGS = ("clip_eps_low", "clip_eps_high", "dual_clip", "mask_low", "mask_high", "proximal_coef")
"""Settings that go to the loss if they are given; what is left out is as the loss has it."""


def grpo_step(state: TrainState, section: GrpoSection, step: int) -> StepMetrics:
    """Sample, score, learn; the caller syncs the weights. Raises NonFiniteError, LevelError, StepError."""
    trajectories, scores, batch = rollout(state, step)
    batch = add_old_logprobs(state, batch)
    batch = add_ref_logprobs(state, batch)
    if section.advantage == "remax":
        batch = add_greedy_rewards(state, batch, trajectories, step)
    batch = add_group_advantages(state, section, batch)
    batch = add_advantages(state, section, batch)

    metrics = StepMetrics(trajectories, scores, batch)
    for minibatch in minibatches(batch, state.config, state.level, step, state.observers):
        loss = partial(policy_loss, state.config, section, minibatch.denominators)
        metrics.add(update(state, state.policy, minibatch, loss, step))
    return metrics


def add_group_advantages(state: TrainState, section: GrpoSection, batch: Batch) -> Batch:
    """Compare each completion with others of its prompt, fp64 [samples], if the estimator is one of samples."""
    rewards, groups, included = (batch[name] for name in ("rewards", "groups", "included"))
    lone = lone_options(state)
    match section.advantage:
        case "grpo":
            found = advantages.grpo(rewards, groups, included, **lone)
        case "dr_grpo":
            found = advantages.dr_grpo(rewards, groups, included, **lone)
        case "rloo":
            found = advantages.rloo(rewards, groups, included, **lone)
        case "reinforce_pp_baseline" | "remax":
            return batch
    batch = batch.extended(group_advantages=found)
    state.observers.emit(GroupAdvantagesEstimated(batch, section.advantage))
    return batch


def lone_options(state: TrainState) -> dict[str, bool]:
    """Return options of an estimator: the only item of a reasoning has none to be compared with, so its advantage is 0.

    A lone completion of a prompt keeps its reward, as the estimators have it.
    """
    return {} if state.config.sampling.two_stage is None else {"keep_lone": False}


def add_advantages(state: TrainState, section: GrpoSection, batch: Batch) -> Batch:
    """Add advantages of tokens, fp32 [samples, positions]."""
    rewards, groups, included, mask = (batch[name] for name in ("rewards", "groups", "included", "loss_mask"))
    match section.advantage:
        case "grpo" | "dr_grpo" | "rloo":
            found = advantages.per_token(batch["group_advantages"], mask)
        case "reinforce_pp_baseline":
            found = advantages.reinforce_pp_baseline(rewards, groups, mask, included, **lone_options(state))
        case "remax":
            at_end = advantages.at_last_token(rewards.float(), mask, included)
            found = advantages.remax(at_end, batch["greedy_rewards"], mask, included).advantages
    batch = batch.extended(advantages=found.float())
    state.observers.emit(AdvantagesEstimated(batch, section, 0.0))
    return batch


def policy_loss(
    config: RunConfig, section: GrpoSection, denominators: Denominators, policy: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute the surrogate, with the penalties that are asked for, as a microbatch's share of the loss."""
    view = view_policy(config, policy, microbatch)
    surrogate = surrogate_of(section, view)
    losses, observed = surrogate.losses, {"clipped": surrogate.clipped.float()}
    if "ref_logprobs" in microbatch:
        reference = microbatch["ref_logprobs"]
        observed["ref_kl"] = approx_kl(view.logprobs, reference, view.loss_mask, section.kl_estimator)
        losses = losses + section.kl_coef * observed["ref_kl"]
    if section.entropy_coef:
        losses = losses - section.entropy_coef * view.entropy
    return view.share(denominators, losses, config.aggregation, **observed)


def surrogate_of(section: GrpoSection, view: PolicyView) -> PolicyLoss:
    """Compute losses of tokens by the ratio of the policy to the one before the step, or to the sampler."""
    loss, is_to_sampler = LOSSES[section.loss]
    reference = view.rollout_logprobs if is_to_sampler else view.old_logprobs
    asked = {name: value for name in LOSS_SETTINGS if (value := getattr(section, name)) is not None}
    return loss(view.logprobs, reference, view.advantages, view.loss_mask, **asked)
