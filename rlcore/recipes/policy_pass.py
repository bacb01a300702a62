"""The policy read against the one that sampled: what the losses of GRPO and PPO are made of."""

from collections.abc import Callable
from typing import NamedTuple

import torch
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
from rlcore.batching.batch import Batch
from rlcore.batching.microbatches import Microbatch
from rlcore.batching.minibatches import Minibatch
from rlcore.config import CorrectionSection
from rlcore.models.decoder import Decoder
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import BatchExtended, PolicyMatched, ReferenceUsed
from rlcore.train_state import TrainState
from rlcore.trainers.base import MicrobatchLoss
from rlcore.trainers.scoring import in_bulk, score


class PolicyView(NamedTuple):
    """One microbatch as the policy sees it now, each [samples, positions of the microbatch]."""

    logprobs: Tensor
    entropy: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    weights: Tensor | None
    """Weights of the losses, if the sampler's log-probabilities are corrected for."""

    def share(self, minibatch: Minibatch, losses: Tensor, aggregation: Mode, **observed: Tensor) -> MicrobatchLoss:
        """Aggregate losses of tokens to the microbatch's share of the minibatch's loss."""
        if self.weights is not None:
            losses = reweighted(losses, self.weights, self.loss_mask)
            observed = {**observed, "weights": self.weights}
        shares = sample_shares(losses, self.loss_mask, aggregation, minibatch.denominators)
        values = {
            "logprobs": self.logprobs,
            "entropy": self.entropy,
            "approx_kl": self.old_logprobs - self.logprobs,
            **observed,
        }
        return MicrobatchLoss(shares.sum(), {name: value.detach() for name, value in values.items()}, self.loss_mask)


def view_policy(state: TrainState, batch: Batch, microbatch: Microbatch) -> PolicyView:
    """Read a microbatch with a gradient, beside what the sampler and the policy before the step said of it."""
    mask, sampled = microbatch.select(batch["loss_mask"]), microbatch.select(batch["rollout_logprobs"])
    scored = score(state.decoder, microbatch, state.config.sampling.temperature)
    if "old_logprobs" in batch:
        old = microbatch.select(batch["old_logprobs"])
    else:
        old = scored.logprobs.detach()
        state.observers.emit(PolicyMatched(old, sampled, mask, microbatch.samples, microbatch.first))
    weights = correction_weights(state.config.correction, old, sampled, mask)
    advantages = microbatch.select(batch["advantages"])
    return PolicyView(scored.logprobs, scored.entropy, old, sampled, advantages, mask, weights)


def correction_weights(section: CorrectionSection, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor | None:
    """Compute the weights of losses for the mismatch of trainer and sampler; None if none are asked for."""
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


def add_old_logprobs(state: TrainState, batch: Batch) -> Batch:
    """Add log-probabilities of the policy before the step's first update, if there is more than one.

    With a single update, the pass that learns gives them itself. At level invariant they are the sampler's.
    """
    if state.config.training.num_epochs * state.config.training.num_minibatches == 1:
        return batch
    batch = batch.extended(old_logprobs=logprobs_in_bulk(state, state.decoder, batch))
    logprobs, sampled, mask = (batch[name] for name in ("old_logprobs", "rollout_logprobs", "loss_mask"))
    state.observers.emit(PolicyMatched(logprobs, sampled, mask, range(len(mask)), 0))
    state.observers.emit(BatchExtended(batch, "reference", ("old_logprobs",)))
    return batch


def add_ref_logprobs(state: TrainState, batch: Batch) -> Batch:
    """Add log-probabilities of the reference policy, if there is one."""
    if state.reference is None:
        return batch
    state.observers.emit(ReferenceUsed(state.reference))
    batch = batch.extended(ref_logprobs=logprobs_in_bulk(state, state.reference, batch))
    state.observers.emit(BatchExtended(batch, "reference", ("ref_logprobs",)))
    return batch


def logprobs_in_bulk(state: TrainState, model: Decoder, batch: Batch) -> Tensor:
    """Compute log-probabilities of a whole batch, without a gradient."""
    temperature = state.config.sampling.temperature
    return read_in_bulk(state, batch, lambda microbatch: score(model, microbatch, temperature).logprobs)


def read_in_bulk(state: TrainState, batch: Batch, compute: Callable[[Microbatch], Tensor]) -> Tensor:
    """Compute [samples, positions] of a whole batch, without a gradient, with the trainer's threads and budget."""
    runtime = state.config.runtime
    with state.observers.stage("reference"), num_threads(runtime.training_threads):
        return in_bulk(batch, compute, token_budget=runtime.token_budget)
