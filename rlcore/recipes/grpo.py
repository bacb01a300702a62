"""One step of GRPO: group-relative advantages, a clipped ratio, no critic. DeepSeekMath (arXiv:2402.03300),
algorithm 1.

Departures from the paper, each of them a setting: losses are divided by the tokens of the whole minibatch (token-mean)
where the paper takes a mean of means; the KL term is off unless asked for; rewards are of outcomes, not of processes.
"""

from collections.abc import Callable, Mapping

from tensordict import TensorDict
from torch import Tensor

from rlcore.algorithms import advantages
from rlcore.algorithms.kl import approx_kl
from rlcore.algorithms.mismatch_losses import dppo_tv, ipo, masked_is, masked_is_keep
from rlcore.algorithms.policy_losses import PolicyLoss, cispo, gspo, ppo_clip
from rlcore.batching.microbatches import Lane
from rlcore.batching.minibatches import Minibatch, minibatches
from rlcore.checks.step_checks import check_relative
from rlcore.config import GrpoSection
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.greedy_baseline import greedy_rewards
from rlcore.recipes.policy_pass import PolicyView, add_old_logprobs, add_ref_logprobs, update, view
from rlcore.recipes.rollout import rollout
from rlcore.train_state import Engine
from rlcore.trainers.local import LanePart

MISMATCH_LOSSES: Mapping[str, Callable[..., PolicyLoss]] = {"dppo_tv": dppo_tv, "ipo": ipo, "masked_is": masked_is}


def grpo_step(engine: Engine, section: GrpoSection, step: int) -> StepMetrics:
    """Sample, judge, learn; to hand the weights on is the caller's. Raises NonFiniteError, LevelError."""
    completions, scores, batch = rollout(engine, step)
    add_old_logprobs(engine, batch)
    add_ref_logprobs(engine, batch)
    if section.advantage == "remax":
        batch["greedy_rewards"] = greedy_rewards(engine, completions, step)
        engine.recorder.record("reward", "greedy_rewards", batch["greedy_rewards"])
    batch["advantages"] = advantages_of(section, batch)
    engine.recorder.record("advantage", "advantages", batch["advantages"])

    metrics = StepMetrics(completions, scores, batch)
    for minibatch in minibatches(batch, engine.config, engine.level, step):

        def loss_of(lane: Lane, minibatch: Minibatch = minibatch) -> LanePart:
            return lane_loss(engine, section, batch, minibatch, lane)

        metrics.add(update(engine, engine.policy, minibatch, loss_of, step))
    return metrics


def advantages_of(section: GrpoSection, batch: TensorDict) -> Tensor:
    """Each completion against others of its prompt, fp32 [samples, positions]."""
    rewards, groups, included, mask = (batch[name] for name in ("rewards", "groups", "included", "loss_mask"))
    match section.advantage:
        case "grpo":
            found = advantages.grpo(rewards, groups, included)
        case "dr_grpo":
            found = advantages.dr_grpo(rewards, groups, included)
        case "rloo":
            found = advantages.rloo(rewards, groups, included)
        case "reinforce_pp_baseline":
            return advantages.reinforce_pp_baseline(rewards, groups, mask, included).float()
        case "remax":
            at_end = advantages.at_last_token(rewards.float(), mask, included)
            return advantages.remax(at_end, batch["greedy_rewards"], mask, included).advantages.float()
    check_relative(found, rewards, groups, included)
    return advantages.per_token(found, mask).float()


def lane_loss(engine: Engine, section: GrpoSection, batch: TensorDict, minibatch: Minibatch, lane: Lane) -> LanePart:
    """The surrogate, with the penalties that are asked for, as this lane's share of the minibatch's loss."""
    seen = view(engine, batch, lane)
    surrogate = surrogate_of(section, seen)
    losses, told = surrogate.losses, {"clipped": surrogate.clipped.float()}
    if "ref_logprobs" in batch.keys():  # noqa: SIM118 - a TensorDict refuses a plain `in`
        kl = approx_kl(seen.logprobs, lane.of(batch["ref_logprobs"]), seen.loss_mask, section.kl_estimator)
        losses, told["ref_kl"] = losses + section.kl_coef * kl, kl
    if section.entropy_coef:
        losses = losses - section.entropy_coef * seen.entropy
    return seen.part(minibatch, losses, section.aggregation, **told)


def surrogate_of(section: GrpoSection, seen: PolicyView) -> PolicyLoss:
    """Losses of tokens by the ratio of the policy to the one before the step, or to the sampler's own numbers."""
    given = (seen.logprobs, seen.old_logprobs, seen.advantages, seen.loss_mask)
    low, high = section.clip_eps_low, section.clip_eps_high
    match section.loss:
        case "ppo_clip":
            return ppo_clip(*given, clip_eps_low=low, clip_eps_high=high, dual_clip=section.dual_clip)
        case "gspo":
            return gspo(*given, clip_eps_low=low, clip_eps_high=high)
        case "cispo":
            return cispo(*given, clip_eps_low=low, clip_eps_high=high)
        case "dppo_tv" | "ipo" | "masked_is":
            return mismatch_loss(section, seen)


def mismatch_loss(section: GrpoSection, seen: PolicyView) -> PolicyLoss:
    """One of the losses by the ratio to the sampler; what is not set is as the loss has it."""
    given = [seen.logprobs, seen.rollout_logprobs, seen.advantages, seen.loss_mask]
    if section.loss == "masked_is":
        given.append(masked_is_keep(seen.logprobs, seen.rollout_logprobs, seen.loss_mask))
    asked = {"mask_low": section.mask_low, "mask_high": section.mask_high, "kl_coef": section.proximal_coef}
    return MISMATCH_LOSSES[section.loss](*given, **{name: value for name, value in asked.items() if value is not None})
