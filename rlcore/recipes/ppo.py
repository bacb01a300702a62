"""One step of PPO: a critic, generalised advantage estimation, a clipped ratio. PPO (arXiv:1707.06347), algorithm 1.

As language models are trained with it: one reward a completion, on its last token; the distance to the reference policy
is taken from the rewards of tokens (InstructGPT, arXiv:2203.02155); policy and critic are two models.
"""

from tensordict import TensorDict

from rlcore.algorithms.advantages import at_last_token, gae, whiten
from rlcore.algorithms.aggregation import sample_shares
from rlcore.algorithms.kl import adaptive_kl_coef, approx_kl, in_rewards
from rlcore.algorithms.policy_losses import ppo_clip
from rlcore.algorithms.value_loss import value_loss
from rlcore.batching.microbatches import Lane
from rlcore.batching.minibatches import Minibatch, minibatches
from rlcore.checks.step_checks import check_estimates, check_token_rewards, check_whitened
from rlcore.config import PpoSection
from rlcore.numerics.probe import num_threads
from rlcore.observability.metrics import mean
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.policy_pass import add_old_logprobs, add_ref_logprobs, update, view
from rlcore.recipes.rollout import rollout
from rlcore.train_state import Engine
from rlcore.trainers.local import LanePart
from rlcore.trainers.scoring import in_bulk, values


def ppo_step(engine: Engine, section: PpoSection, step: int) -> StepMetrics:
    """Sample, judge, learn; to hand the weights on is the caller's. Raises NonFiniteError, LevelError."""
    assert engine.critic is not None
    completions, scores, batch = rollout(engine, step)
    add_old_logprobs(engine, batch)
    add_ref_logprobs(engine, batch)
    add_values(engine, batch)
    metrics = StepMetrics(completions, scores, batch, kl_coef=engine.kl_coef)
    add_advantages(engine, section, batch)

    for minibatch in minibatches(batch, engine.config, engine.level, step):

        def value_part(lane: Lane, minibatch: Minibatch = minibatch) -> LanePart:
            return lane_value_loss(engine, section, batch, minibatch, lane)

        def policy_part(lane: Lane, minibatch: Minibatch = minibatch) -> LanePart:
            return lane_policy_loss(engine, section, batch, minibatch, lane)

        metrics.add(update(engine, engine.critic, minibatch, value_part, step))
        if step >= section.num_critic_warmup_steps:
            metrics.add(update(engine, engine.policy, minibatch, policy_part, step))
    return metrics


def add_values(engine: Engine, batch: TensorDict) -> None:
    """What the critic expects before each token, as it was before the step."""
    with engine.phases("reference"), num_threads(engine.config.perturbation.training_threads):
        batch["values"] = in_bulk(
            batch,
            lambda lane: values(engine.value_model, lane),
            microbatch_tokens=engine.config.perturbation.microbatch_tokens,
        )
    engine.recorder.record("reference", "values", batch["values"])


def add_advantages(engine: Engine, section: PpoSection, batch: TensorDict) -> None:
    """Rewards of tokens, advantages and returns; moves an adaptive KL coefficient."""
    mask, included = batch["loss_mask"], batch["included"]
    token_rewards = at_last_token(batch["rewards"].float(), mask, included)
    check_token_rewards(token_rewards, batch)
    if engine.reference is not None:
        sampled, reference = batch["rollout_logprobs"], batch["ref_logprobs"]
        token_rewards = in_rewards(token_rewards, sampled, reference, mask, kl_coef=engine.kl_coef)
        if section.kl_target is not None:
            engine.kl_coef = adaptive_kl_coef(
                engine.kl_coef,
                mean(approx_kl(sampled, reference, mask, "k1")[mask].tolist()),
                target_kl=section.kl_target,
                num_samples=len(mask),
                horizon=section.kl_horizon,
            )
    found = gae(token_rewards, batch["values"], mask, included, gamma=section.gamma, lam=section.lam)
    check_estimates(found, token_rewards, batch, gamma=section.gamma, lam=section.lam)
    advantages = found.advantages
    if section.whitens_advantages:
        advantages = whiten(advantages, mask, included)
        check_whitened(advantages, mask, included)
    batch["advantages"], batch["returns"] = advantages, found.returns
    engine.recorder.record("reward", "token_rewards", token_rewards)
    engine.recorder.record("advantage", "advantages", advantages)
    engine.recorder.record("advantage", "returns", found.returns)


def lane_policy_loss(
    engine: Engine, section: PpoSection, batch: TensorDict, minibatch: Minibatch, lane: Lane
) -> LanePart:
    """The clipped surrogate as this lane's share of the minibatch's loss."""
    seen = view(engine, batch, lane)
    surrogate = ppo_clip(
        seen.logprobs,
        seen.old_logprobs,
        seen.advantages,
        seen.loss_mask,
        clip_eps_low=section.clip_eps_low,
        clip_eps_high=section.clip_eps_high,
        dual_clip=section.dual_clip,
    )
    losses = surrogate.losses - section.entropy_coef * seen.entropy if section.entropy_coef else surrogate.losses
    return seen.part(minibatch, losses, section.aggregation, clipped=surrogate.clipped.float())


def lane_value_loss(
    engine: Engine, section: PpoSection, batch: TensorDict, minibatch: Minibatch, lane: Lane
) -> LanePart:
    """How far the critic is from the returns, as this lane's share."""
    mask, old = lane.of(batch["loss_mask"]), lane.of(batch["values"])
    expected = values(engine.value_model, lane)
    found = value_loss(expected, old, lane.of(batch["returns"]), mask, clip_eps=section.value_clip_eps)
    shares = sample_shares(found.losses, mask, section.aggregation, minibatch.denominators)
    return LanePart(shares.sum(), {"values": expected.detach(), "clipped": found.clipped.float()}, mask)
