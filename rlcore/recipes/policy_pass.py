"""The policy read against the one that sampled: what the losses of GRPO and PPO are made of."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.algorithms.aggregation import Denominators, Mode, sample_shares
from rlcore.algorithms.correction import (
    accepted,
    icepop,
    mismatch,
    reweighted,
    sequence_weights,
    token_weights,
    truncate,
)
from rlcore.config import CorrectionSection, RunConfig
from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch
from rlcore.data.minibatches import Minibatch
from rlcore.observability.events import BatchExtended, PolicyMatched
from rlcore.recipes.idle_models import rest
from rlcore.train_state import TrainState
from rlcore.trainers.gradients import MicrobatchLoss, Reading
from rlcore.trainers.scoring import in_bulk, score
from rlcore.trainers.trainer import Trainer


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

    def share(
        self, denominators: Denominators, losses: Tensor, aggregation: Mode, **observed: Tensor
    ) -> MicrobatchLoss:
        """Aggregate losses of tokens to the microbatch's share of the minibatch's loss."""
        if self.weights is not None:
            losses = reweighted(losses, self.weights, self.loss_mask)
            observed = {**observed, "weights": self.weights}
        shares = sample_shares(losses, self.loss_mask, aggregation, denominators)
        values = {
            "logprobs": self.logprobs,
            "entropy": self.entropy,
            "approx_kl": self.old_logprobs - self.logprobs,
            **observed,
        }
        return MicrobatchLoss(shares.sum(), {name: value.detach() for name, value in values.items()}, self.loss_mask)


def view_policy(config: RunConfig, policy: nn.Module, microbatch: Microbatch) -> PolicyView:
    """Read a microbatch with a gradient, beside what the sampler and the policy before the step said of it."""
    mask, sampled = microbatch["loss_mask"], microbatch["rollout_logprobs"]
    scored = score(policy, microbatch, config.sampling.temperature)
    old = microbatch["old_logprobs"] if "old_logprobs" in microbatch else scored.logprobs.detach()
    weights = correction_weights(config.correction, old, sampled, mask)
    return PolicyView(scored.logprobs, scored.entropy, old, sampled, microbatch["advantages"], mask, weights)


def match_policy(state: TrainState, minibatch: Minibatch, losses: Sequence[MicrobatchLoss]) -> None:
    """Compare the passes of a step's only update with what the sampler said: no other pass is of the same policy."""
    for microbatch, part in zip(minibatch.microbatches, losses, strict=True):
        if "old_logprobs" not in microbatch:
            sampled, mask = microbatch["rollout_logprobs"], microbatch["loss_mask"]
            state.observers.emit(
                PolicyMatched(part.observed["logprobs"], sampled, mask, microbatch.samples, microbatch.first)
            )


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
    batch = batch.extended(old_logprobs=logprobs_in_bulk(state, state.policy, batch))
    logprobs, sampled, mask = (batch[name] for name in ("old_logprobs", "rollout_logprobs", "loss_mask"))
    state.observers.emit(PolicyMatched(logprobs, sampled, mask, range(len(mask)), 0))
    state.observers.emit(BatchExtended(batch, "reference", ("old_logprobs",)))
    return batch


def add_ref_logprobs(state: TrainState, batch: Batch) -> Batch:
    """Add log-probabilities of the reference policy, if there is one."""
    if state.reference is None:
        return batch
    batch = batch.extended(ref_logprobs=logprobs_in_bulk(state, state.reference, batch))
    rest(state, state.reference)
    state.observers.emit(BatchExtended(batch, "reference", ("ref_logprobs",)))
    return batch


def logprobs_in_bulk(state: TrainState, reader: Trainer, batch: Batch) -> Tensor:
    """Compute log-probabilities of a whole batch, without a gradient."""
    return read_in_bulk(state, reader, batch, partial(logprobs, temperature=state.config.sampling.temperature))


def logprobs(policy: nn.Module, microbatch: Microbatch, *, temperature: float) -> Tensor:
    """Compute log-probabilities of the tokens from `first` on."""
    return score(policy, microbatch, temperature).logprobs


def read_in_bulk(state: TrainState, reader: Trainer, batch: Batch, reading: Reading) -> Tensor:
    """Read [samples, positions] of a whole batch, without a gradient, with the trainer's budget."""
    with state.observers.stage("reference"):
        return in_bulk(batch, reader, reading, token_budget=state.config.runtime.token_budget)
