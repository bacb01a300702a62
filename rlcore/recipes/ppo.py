"""One step of PPO: a critic, generalised advantage estimation, a clipped ratio. PPO (arXiv:1707.06347), algorithm 1.

As language models are trained with it: one reward a completion, on its last token; the distance to the reference policy
is taken from the rewards of tokens (InstructGPT, arXiv:2203.02155); policy and critic are two models.
"""

from functools import partial

from torch import nn

from rlcore.algorithms.advantages import at_last_token, gae, whiten
from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.kl import adaptive_kl_coef, approx_kl, in_rewards
from rlcore.algorithms.masks import included_tokens
from rlcore.algorithms.policy_losses import ppo_clip
from rlcore.algorithms.value_loss import value_loss
from rlcore.config import PpoSection, RunConfig
from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch
from rlcore.data.minibatches import minibatches
from rlcore.observability.events import AdvantagesEstimated, BatchExtended
from rlcore.observability.metrics import mean
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.policy_pass import add_old_logprobs, add_ref_logprobs, read_in_bulk, view_policy
from rlcore.recipes.rollout import rollout
from rlcore.recipes.update import update
from rlcore.train_state import TrainState
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.trainers.scoring import values


def ppo_step(state: TrainState, section: PpoSection, step: int) -> StepMetrics:
    """Sample, score, learn; the caller syncs the weights. Raises NonFiniteError, LevelError, StepError."""
    assert state.critic is not None
    trajectories, scores, batch = rollout(state, step)
    batch = add_old_logprobs(state, batch)
    batch = add_ref_logprobs(state, batch)
    batch = add_values(state, batch)
    metrics = StepMetrics(trajectories, scores, batch, kl_coef=state.kl_coef)
    batch = add_advantages(state, section, batch)

    for minibatch in minibatches(batch, state.config, state.level, step, state.observers):
        value_part = partial(critic_loss, section, minibatch.denominators)
        metrics.add(update(state, state.critic, minibatch, value_part, step))
        if step >= section.num_critic_warmup_steps:
            policy_part = partial(policy_loss, state.config, section, minibatch.denominators)
            metrics.add(update(state, state.policy, minibatch, policy_part, step))
    return metrics


def add_values(state: TrainState, batch: Batch) -> Batch:
    """Add what the critic expects before each token, as it was before the step."""
    assert state.critic is not None
    found = read_in_bulk(state, state.critic, batch, values)
    batch = batch.extended(values=found)
    state.observers.emit(BatchExtended(batch, "reference", ("values",)))
    return batch


def add_advantages(state: TrainState, section: PpoSection, batch: Batch) -> Batch:
    """Add rewards of tokens, advantages and returns; move an adaptive KL coefficient."""
    mask, included = batch["loss_mask"], batch["included"]
    kl_coef = 0.0 if state.reference is None else state.kl_coef
    token_rewards = outcome_rewards = at_last_token(batch["rewards"].float(), mask, included)
    if state.reference is not None:
        sampled, reference = batch["rollout_logprobs"], batch["ref_logprobs"]
        token_rewards = in_rewards(token_rewards, sampled, reference, mask, kl_coef=kl_coef)
        if section.kl_target is not None:
            state.kl_coef = adaptive_kl_coef(
                state.kl_coef,
                mean(approx_kl(sampled, reference, mask, "k1")[included_tokens(mask, included)].tolist()),
                target_kl=section.kl_target,
                num_samples=int(included.sum()),
                horizon=section.kl_horizon,
            )
    estimated, returns = gae(token_rewards, batch["values"], mask, included, gamma=section.gamma, lam=section.lam)
    batch = batch.extended(
        outcome_rewards=outcome_rewards,
        token_rewards=token_rewards,
        gae=estimated,
        returns=returns,
        advantages=whiten(estimated, mask, included) if section.whitens_advantages else estimated,
    )
    state.observers.emit(AdvantagesEstimated(batch, section, kl_coef))
    return batch


def policy_loss(
    config: RunConfig, section: PpoSection, denominators: Denominators, policy: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute the clipped surrogate as a microbatch's share of the minibatch's loss."""
    view = view_policy(config, policy, microbatch)
    surrogate = ppo_clip(
        view.logprobs,
        view.old_logprobs,
        view.advantages,
        view.loss_mask,
        clip_eps_low=section.clip_eps_low,
        clip_eps_high=section.clip_eps_high,
        dual_clip=section.dual_clip,
    )
    losses = surrogate.losses - section.entropy_coef * view.entropy if section.entropy_coef else surrogate.losses
    return view.share(denominators, losses, section.aggregation, clipped=surrogate.clipped.float())


def critic_loss(
    section: PpoSection, denominators: Denominators, critic: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute the distance of the critic from the returns as a microbatch's share."""
    mask, expected = microbatch["loss_mask"], values(critic, microbatch)
    found = value_loss(expected, microbatch["values"], microbatch["returns"], mask, clip_eps=section.value_clip_eps)
    shares = sample_shares(found.losses, mask, section.aggregation, denominators)
    return MicrobatchLoss(shares.sum(), {"values": expected.detach(), "clipped": found.clipped.float()}, mask)
