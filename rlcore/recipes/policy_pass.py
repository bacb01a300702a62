"""What GRPO and PPO share: the policy read against the one that sampled, and an optimizer step over lanes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from rlcore.algorithms.aggregation import Mode, sample_shares
from rlcore.algorithms.correction import (
    accepted,
    icepop,
    mismatch,
    reweighted,
    sequence_weights,
    token_weights,
    truncate,
)
from rlcore.algorithms.schedules import constant_lr, cosine_lr, linear_lr
from rlcore.batching.microbatches import Lane
from rlcore.batching.minibatches import Minibatch
from rlcore.checks.step_checks import check_undrawn
from rlcore.checks.update_checks import check_configured, check_frozen, check_lanes
from rlcore.config import CorrectionSection, OptimizerSection
from rlcore.errors import LevelError
from rlcore.models.decoder import Decoder
from rlcore.numerics.probe import num_threads
from rlcore.train_state import Engine
from rlcore.trainers.local import LanePart, Learner, gradient, step_optimizer
from rlcore.trainers.scoring import in_bulk, score


class PolicyView(NamedTuple):
    """One lane as the policy sees it now, each [samples, positions of the lane]."""

    logprobs: Tensor
    entropy: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    weights: Tensor | None
    """On the losses, where the sampler's log-probabilities are corrected for."""

    def part(self, minibatch: Minibatch, losses: Tensor, aggregation: Mode, **seen: Tensor) -> LanePart:
        """These losses of tokens as the lane's share of the minibatch's loss."""
        if self.weights is not None:
            losses, seen = reweighted(losses, self.weights, self.loss_mask), {**seen, "weights": self.weights}
        shares = sample_shares(losses, self.loss_mask, aggregation, minibatch.denominators)
        told = {
            "logprobs": self.logprobs,
            "entropy": self.entropy,
            "approx_kl": self.old_logprobs - self.logprobs,
            **seen,
        }
        return LanePart(shares.sum(), {name: value.detach() for name, value in told.items()}, self.loss_mask)


class Updated(NamedTuple):
    """An optimizer step that was taken."""

    learner: str
    norm: float
    """Of the gradient, before clipping."""
    learning_rate: float
    parts: tuple[LanePart, ...]


def view(engine: Engine, batch: TensorDict, lane: Lane) -> PolicyView:
    """Read a lane with a gradient. Raises LevelError where the bits on policy are not the sampler's."""
    mask = lane.of(batch["loss_mask"])
    scored = score(engine.decoder, lane, engine.config.sampling.temperature)
    if "old_logprobs" in batch.keys():  # noqa: SIM118 - a TensorDict refuses a plain `in`
        old = lane.of(batch["old_logprobs"])
    else:
        old = scored.logprobs.detach()
        check_match(old, lane.of(batch["rollout_logprobs"]), mask, engine.level)
    sampled = lane.of(batch["rollout_logprobs"])
    weights = correction_weights(engine.config.correction, old, sampled, mask)
    return PolicyView(scored.logprobs, scored.entropy, old, sampled, lane.of(batch["advantages"]), mask, weights)


def correction_weights(section: CorrectionSection, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor | None:
    """What losses are multiplied with for the distance of trainer and sampler; None where nothing is asked for."""
    log_ratio = mismatch(old, sampled, mask)
    match section.weights:
        case "none":
            weights = mask.float()
        case "token":
            weights = token_weights(log_ratio, mask)
        case "sequence":
            weights = sequence_weights(log_ratio, mask)
    if section.weights != "none":
        is_icepop = section.outside == "icepop"
        weights = icepop(weights, section.low, section.high) if is_icepop else truncate(weights, section.high)
    if section.max_mean_k3 is not None:
        kept = accepted(log_ratio, mask, scope="mean", estimator="k3", high=section.max_mean_k3)
        return torch.where(kept, weights, 0.0)
    return None if section.weights == "none" else weights


def add_old_logprobs(engine: Engine, batch: TensorDict) -> None:
    """Those of the policy before the step's first update, where there is more than one.

    With a single one, the pass that learns gives them itself. At level invariant they are the sampler's.
    """
    if engine.config.training.num_epochs * engine.config.training.num_minibatches == 1:
        return
    batch["old_logprobs"] = _logprobs(engine, engine.decoder, batch)
    check_match(batch["old_logprobs"], batch["rollout_logprobs"], batch["loss_mask"], engine.level)
    engine.recorder.record("reference", "old_logprobs", batch["old_logprobs"])


def add_ref_logprobs(engine: Engine, batch: TensorDict) -> None:
    """Those of the reference policy, where there is one."""
    if engine.reference is not None:
        engine.num_reference_writes = check_frozen(engine.reference, engine.num_reference_writes)
        batch["ref_logprobs"] = _logprobs(engine, engine.reference, batch)
        engine.recorder.record("reference", "ref_logprobs", batch["ref_logprobs"])


def update(
    engine: Engine, learner: Learner, minibatch: Minibatch, loss_of: Callable[[Lane], LanePart], step: int
) -> Updated:
    """Gradients of the lanes, their sum, a clip and a step of the optimizer. Raises NonFiniteError."""
    section, recorder = engine.config.optimizer, engine.recorder
    threads = num_threads(engine.config.perturbation.training_threads)
    with engine.phases("update"), threads, check_undrawn("forward", "loss", "backward"):
        found = gradient(learner.model, minibatch.workers, loss_of)
    denominators = minibatch.denominators
    check_lanes([part.loss_mask for part in found.parts], denominators.num_tokens, denominators.num_samples)
    for part in found.parts:
        for name, value in part.seen.items():
            recorder.record("forward", f"{learner.name}.{name}", torch.where(part.loss_mask, value, 0.0))
        recorder.record("loss", learner.name, part.loss)
    rate = learning_rate(section, learner.peak_rate, step, engine.config.training.num_steps)
    check_configured(learner.optimizer, section)
    with engine.phases("optimizer"), num_threads(engine.config.perturbation.training_threads):
        norm = step_optimizer(
            learner, found.flat, learning_rate=rate, max_norm=section.max_gradient_norm, recorder=recorder
        )
    return Updated(learner.name, norm, rate, found.parts)


def learning_rate(section: OptimizerSection, peak: float, step: int, num_steps: int) -> float:
    """That of a step, from its number alone."""
    match section.schedule:
        case "constant":
            return constant_lr(step, peak=peak, num_warmup_steps=section.num_warmup_steps)
        case "linear":
            decay = linear_lr
        case "cosine":
            decay = cosine_lr
    return decay(
        step,
        peak=peak,
        num_steps=num_steps,
        num_warmup_steps=section.num_warmup_steps,
        final_ratio=section.final_ratio,
    )


def check_match(logprobs: Tensor, sampled: Tensor, loss_mask: Tensor, level: str) -> None:
    """On policy, at level invariant, the trainer's log-probabilities are the sampler's, to the bit.

    Raises LevelError naming the first token that differs.
    """
    if level != "invariant":
        return
    differs = loss_mask & (logprobs != sampled)
    if bool(differs.any()):
        sample, position = differs.nonzero()[0].tolist()
        raise LevelError(
            f"row {sample}, position {position} of a pass: the trainer's log-probability is"
            f" {float(logprobs[sample, position])!r}, the sampler's {float(sampled[sample, position])!r}"
            f" ({int(differs.sum())} of {int(loss_mask.sum())} tokens differ)",
            legal="equal bits at level invariant",
            remedy="see what this machine's operations do: rlharness doctor",
            phases=("rollout", "forward"),
        )


def _logprobs(engine: Engine, model: Decoder, batch: TensorDict) -> Tensor:
    temperature = engine.config.sampling.temperature
    with engine.phases("reference"), num_threads(engine.config.perturbation.training_threads):
        return in_bulk(
            batch,
            lambda lane: score(model, lane, temperature).logprobs,
            microbatch_tokens=engine.config.perturbation.microbatch_tokens,
        )
