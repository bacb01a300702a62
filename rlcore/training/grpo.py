"""One step of GRPO: group-relative advantages, a clipped ratio, no critic. DeepSeekMath (arXiv:2402.03300),
algorithm 1.

Departures from the paper, each of them a setting: losses are divided by the tokens of the whole minibatch (token-mean)
where the paper takes a mean of means; the KL term is off unless asked for; rewards are of outcomes, not of processes.
"""

from tensordict import TensorDict
from torch import Tensor

from rlcore.algorithms import advantages
from rlcore.algorithms.kl import approx_kl
from rlcore.algorithms.policy_losses import PolicyLoss, cispo, gspo, ppo_clip
from rlcore.config import GrpoSection
from rlcore.training.engine import Engine
from rlcore.training.lanes import Lane
from rlcore.training.minibatches import Minibatch, minibatches
from rlcore.training.policy_update import PolicyView, add_old_logprobs, add_ref_logprobs, update, view
from rlcore.training.rollouts import rollout
from rlcore.training.step_checks import check_relative
from rlcore.training.step_metrics import StepMetrics
from rlcore.training.update import LanePart


def grpo_step(engine: Engine, section: GrpoSection, step: int) -> StepMetrics:
    """Sample, judge, learn; to hand the weights on is the caller's. Raises NonFiniteError, LevelError."""
    completions, scores, batch = rollout(engine, step)
    add_old_logprobs(engine, batch)
    add_ref_logprobs(engine, batch)
    batch["advantages"] = advantages_of(section, batch)
    engine.recorder.record("advantage", "advantages", batch["advantages"])

    metrics = StepMetrics(completions, scores)
    for minibatch in minibatches(batch, engine.config, engine.level, step):

        def loss_of(lane: Lane, minibatch: Minibatch = minibatch) -> LanePart:
            return lane_loss(engine, section, batch, minibatch, lane)

        metrics.add(update(engine, engine.policy, minibatch, loss_of, step))
    return metrics


def advantages_of(section: GrpoSection, batch: TensorDict) -> Tensor:
    """Each completion against the others of its prompt, fp32 [samples, positions]."""
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
    """Losses of tokens by the ratio of the policy to the one that sampled."""
    given = (seen.logprobs, seen.old_logprobs, seen.advantages, seen.loss_mask)
    low, high = section.clip_eps_low, section.clip_eps_high
    match section.loss:
        case "ppo_clip":
            return ppo_clip(*given, clip_eps_low=low, clip_eps_high=high, dual_clip=section.dual_clip)
        case "gspo":
            return gspo(*given, clip_eps_low=low, clip_eps_high=high)
        case "cispo":
            return cispo(*given, clip_eps_low=low, clip_eps_high=high)
