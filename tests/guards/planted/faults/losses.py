"""Faults of the loss: the policy read against the one that sampled, penalties, masks, and what it is divided by."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.aggregation import count, sample_shares
from rlcore.algorithms.policy_losses import PolicyLoss
from rlcore.recipes.policy_pass import PolicyView
from rlcore.trainers.scoring import Scored
from tests.guards.planted.fault import Probe, fault, honest, replaced

SCORE = "rlcore.recipes.policy_pass:score"
SURROGATE = "rlcore.recipes.grpo:ppo_clip"
LOSS = ("forward", "loss")
"""What a pass is seen to give of a loss is recorded under forward, its sum under loss."""
READ = ("rollout", "forward")
"""The trainer's numbers, compared with the sampler's."""


@fault("TRL #3029", "the trainer does not divide logits by the temperature", phases=READ, setting="filtered")
def temperature_forgotten(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def at_one(policy: Any, microbatch: Any, temperature: float) -> Scored:
        probe.reached(has_effect=temperature != 1.0)
        found: Scored = score(policy, microbatch, 1.0)
        return found

    with replaced(SCORE, at_one):
        yield


@fault("prime-rl #1525", "log-probabilities are those of the token before", phases=READ)
def logprobs_shifted(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def shifted(policy: Any, microbatch: Any, temperature: float) -> Scored:
        found: Scored = score(policy, microbatch, temperature)
        probe.reached()
        return found._replace(logprobs=found.logprobs.roll(1, dims=-1))

    with replaced(SCORE, shifted):
        yield


@fault("trlX #107", "dropout is on while the trainer reads what was sampled", phases=READ)
def dropout_left_on(probe: Probe) -> Iterator[None]:
    swiglu = honest("rlcore.models.decoder:swiglu")

    def dropped(gate_up: Tensor) -> Tensor:
        found: Tensor = swiglu(gate_up)
        if not torch.is_grad_enabled() or probe.step is None:
            return found
        probe.reached()
        return torch.nn.functional.dropout(found, 0.1)

    with replaced("rlcore.models.decoder:swiglu", dropped):
        yield


@fault("hands-on-modern-rl #27", "policy and reference change places in k3", phases=LOSS, setting="updates")
def kl_upside_down(probe: Probe) -> Iterator[None]:
    kl = honest("rlcore.recipes.grpo:approx_kl")

    def swapped(logprobs: Tensor, ref_logprobs: Tensor, *others: Any) -> Tensor:
        right = kl(logprobs, ref_logprobs, *others)
        wrong: Tensor = kl(2 * ref_logprobs - logprobs, ref_logprobs, *others)
        probe.reached(has_effect=not torch.equal(right, wrong))
        return wrong

    with replaced("rlcore.recipes.grpo:approx_kl", swapped):
        yield


@fault("TinyZero #72", "the penalty for leaving the reference is a reward", phases=LOSS, setting="updates")
def kl_sign(probe: Probe) -> Iterator[None]:
    kl = honest("rlcore.recipes.grpo:approx_kl")

    def negative(*given: Any) -> Tensor:
        found: Tensor = kl(*given)
        probe.reached(has_effect=bool(found.any()))
        return -found

    with replaced("rlcore.recipes.grpo:approx_kl", negative):
        yield


@fault("pytorch/rl #786", "the clip takes the better of the two, not the worse", phases=LOSS, setting="updates")
def clip_on_the_wrong_side(probe: Probe) -> Iterator[None]:
    clip = honest(SURROGATE)

    def wrong_side(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **bounds: Any) -> PolicyLoss:
        found: PolicyLoss = clip(logprobs, old, advantages, mask, **bounds)
        ratio = torch.where(mask, logprobs - old, 0.0).exp()
        clipped = ratio.clamp(1 - bounds["clip_eps_low"], 1 + bounds["clip_eps_high"])
        losses = torch.where(mask, torch.minimum(-advantages * ratio, -advantages * clipped), 0.0)
        probe.reached(has_effect=not torch.equal(losses, found.losses))
        return found._replace(losses=losses)

    with replaced(SURROGATE, wrong_side):
        yield


@fault("trlX #508", "the ratio is to the policy as it is, always 1", phases=LOSS, setting="updates")
def ratio_of_one(probe: Probe) -> Iterator[None]:
    clip = honest(SURROGATE)

    def to_itself(logprobs: Tensor, old: Tensor, *others: Any, **bounds: Any) -> PolicyLoss:
        probe.reached(has_effect=not torch.equal(old, logprobs))
        found: PolicyLoss = clip(logprobs, logprobs.detach(), *others, **bounds)
        return found

    with replaced(SURROGATE, to_itself):
        yield


@fault("verl #906", "losses are divided by the tokens of their microbatch", phases=LOSS)
def local_denominators(probe: Probe) -> Iterator[None]:
    part = PolicyView.share

    def local(view: PolicyView, denominators: Any, losses: Tensor, aggregation: Any, **seen: Tensor) -> Any:
        found = part(view, denominators, losses, aggregation, **seen)
        num_lanes = denominators.num_samples // len(losses)
        shares = sample_shares(losses, view.loss_mask, aggregation, count(view.loss_mask)) / num_lanes
        probe.reached(has_effect=not torch.equal(shares.sum(), found.loss))
        return found._replace(loss=shares.sum())

    with replaced("rlcore.recipes.policy_pass:PolicyView.share", local):
        yield


@fault("TRL #3021", "losses are divided by what accumulation has seen so far", phases=LOSS, setting="updates")
def denominators_of_an_epoch(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.data.minibatches:Denominators")

    def of_all(num_tokens: int, num_samples: int, horizon: float | None) -> Any:
        probe.reached()
        return made(num_tokens * 2, num_samples * 2, horizon)

    with replaced("rlcore.data.minibatches:Denominators", of_all):
        yield


@fault(
    "OpenRLHF #1240", "a mask is a product, and what stands behind it is NaN", phases=("forward", "loss", "reference")
)
def mask_by_product(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def poisoned(policy: Any, microbatch: Any, temperature: float) -> Scored:
        found: Scored = score(policy, microbatch, temperature)
        is_padding = microbatch.tokens[:, microbatch.first :] == 0
        return found._replace(logprobs=torch.where(is_padding, torch.nan, found.logprobs))

    def product(mask: Tensor, values: Tensor) -> Tensor:
        probe.reached(has_effect=bool(values.isnan().any()))
        return mask * values

    with replaced(SCORE, poisoned), replaced("rlcore.algorithms.policy_losses:only", product):
        yield


@fault("verl #1758", "the critic learns from padding too", phases=LOSS, setting="ppo")
def value_mask_too_long(probe: Probe) -> Iterator[None]:
    value_loss = honest("rlcore.recipes.ppo:value_loss")

    def longer(values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, **others: Any) -> Any:
        wider = mask | mask.roll(1, dims=-1)
        probe.reached(has_effect=not torch.equal(wider, mask))
        return value_loss(values, old, returns, wider, **others)._replace(
            losses=value_loss(values, old, returns, wider, **others).losses
        )

    def all_of_it(losses: Tensor, mask: Tensor, *others: Any) -> Tensor:
        return sample_shares(losses, torch.ones_like(mask), *others)

    with replaced("rlcore.recipes.ppo:value_loss", longer), replaced("rlcore.recipes.ppo:sample_shares", all_of_it):
        yield


@fault("TRL #6121", "the entropy is taken over padding too", phases=("forward",), leaves=("entropy",))
def entropy_at_one(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def of_the_drawn(policy: Any, microbatch: Any, temperature: float) -> Scored:
        found: Scored = score(policy, microbatch, temperature)
        probe.reached()
        return found._replace(entropy=-found.logprobs)

    with replaced(SCORE, of_the_drawn):
        yield


@fault("verl: clip_cov's randperm", "minibatches are drawn by a generator nobody seeds", phases=LOSS, setting="updates")
def unseeded_permutation(probe: Probe) -> Iterator[None]:
    generator = torch.Generator()
    generator.seed()

    def drawn(num_items: int, *parts: Any) -> list[int]:
        probe.reached()
        order: list[int] = torch.randperm(num_items, generator=generator).tolist()
        return order

    with replaced("rlcore.data.minibatches:permutation", drawn):
        yield


@fault(
    "torch: sums by length, measured",
    "lanes are padded to the batch's longest",
    phases=("backward", *LOSS),
    setting="roomy",
)
def padded_to_the_longest(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.data.microbatches:build_microbatch")

    def longest(batch: Any, samples: Any, number: int) -> Any:
        microbatch = made(batch, samples, number)
        width = int(batch["lengths"].max()) + 16
        missing = width - microbatch.tokens.shape[1]
        probe.reached(has_effect=missing > 0)
        return replace(microbatch, tokens=torch.nn.functional.pad(microbatch.tokens, (0, max(0, missing))))

    with replaced("rlcore.data.microbatches:build_microbatch", longest):
        yield


@fault("NeMo-RL #618", "the last microbatch is dropped", phases=(*LOSS, "backward"))
def last_lane_dropped(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.trainers.local:divide_among_workers")

    def all_but_one(microbatches: Any, world_size: int) -> Any:
        if probe.step is None:
            return made(microbatches, world_size)
        probe.reached()
        return made(microbatches[:-1], world_size)

    with replaced("rlcore.trainers.local:divide_among_workers", all_but_one):
        yield


FAULTS = (
    temperature_forgotten,
    logprobs_shifted,
    dropout_left_on,
    kl_upside_down,
    kl_sign,
    clip_on_the_wrong_side,
    ratio_of_one,
    local_denominators,
    denominators_of_an_epoch,
    mask_by_product,
    value_mask_too_long,
    entropy_at_one,
    unseeded_permutation,
    padded_to_the_longest,
    last_lane_dropped,
)
