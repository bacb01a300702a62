"""Faults of advantages, passes and updates that a reviewer planted, who had not written the checks."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages
from rlcore.data.microbatches import Microbatch
from rlcore.models.decoder import Decoder
from rlcore.trainers.local import LocalTrainer
from tests.guards.planted.fault import LEVEL, Probe, fault, honest, replaced
from tests.guards.planted.faults.advantages import GAE, GRPO

ADVANTAGE = ("advantage",)
BACKWARD = ("backward",)
OPTIMIZER = ("optimizer",)
LOSS = ("forward", "loss")
TAKEN = "rlcore.trainers.local:take_gradient"
NORM = "rlcore.trainers.local:global_norm"
STEP = "rlcore.trainers.local:LocalTrainer.optimizer_step"
WORKERS = "rlcore.trainers.local:divide_among_workers"


@fault(
    "review: None as 0", "what has no reward counts as 0 in the mean of its group", phases=ADVANTAGE, setting="ragged"
)
def unjudged_in_the_mean(probe: Probe) -> Iterator[None]:
    grpo = honest(GRPO)

    def with_zeros(rewards: Tensor, groups: Tensor, included: Tensor, **others: Any) -> Tensor:
        found = torch.where(included, grpo(rewards, groups, torch.ones_like(included), **others), 0.0)
        probe.reached(has_effect=not torch.equal(found, grpo(rewards, groups, included, **others)))
        return found

    with replaced(GRPO, with_zeros):
        yield


@fault("review: TRL's scale_rewards=batch", "advantages are divided by the deviation of the batch", phases=ADVANTAGE)
def scaled_by_the_batch(probe: Probe) -> Iterator[None]:
    grpo = honest(GRPO)

    def by_batch(rewards: Tensor, groups: Tensor, included: Tensor, **others: Any) -> Tensor:
        centred = honest("rlcore.algorithms.advantages:dr_grpo")(rewards, groups, included, **others)
        found: Tensor = centred / (rewards.std() + 1e-6)
        probe.reached(has_effect=not torch.equal(found, grpo(rewards, groups, included, **others)))
        return found

    with replaced(GRPO, by_batch):
        yield


@fault("review: time limits", "a completion that was cut is worth what its padding is", phases=ADVANTAGE, setting="ppo")
def bootstrapped_from_padding(probe: Probe) -> Iterator[None]:
    gae = honest(GAE)

    def with_padding(token_rewards: Tensor, values: Tensor, mask: Tensor, *given: Any, **factors: float) -> Any:
        right: TokenAdvantages = gae(token_rewards, values, mask, *given, **factors)
        is_cut = mask.sum(-1) == mask.sum(-1).max()
        extra = torch.where(is_cut.unsqueeze(-1) & mask, values.abs().max(), 0.0)
        probe.reached(has_effect=bool(extra.any()))
        return right._replace(advantages=right.advantages + extra, returns=right.returns + extra)

    with replaced(GAE, with_padding):
        yield


@fault(
    "review: OpenRLHF's rewards",
    "the reward replaces the last token's penalty",
    phases=("reward",),
    setting="ppo",
    leaves=("token_rewards",),
)
def reward_without_its_penalty(probe: Probe) -> Iterator[None]:
    in_rewards = honest("rlcore.recipes.ppo:in_rewards")

    def instead(rewards: Tensor, *given: Any, **others: Any) -> Tensor:
        right: Tensor = in_rewards(rewards, *given, **others)
        wrong = torch.where(rewards != 0, rewards, right)
        probe.reached(has_effect=not torch.equal(right, wrong))
        return wrong

    with replaced("rlcore.recipes.ppo:in_rewards", instead):
        yield


@fault("review: left and right padding", "padded rows are rotated by a position more", phases=("rollout", "forward"))
def padded_rows_rotated(probe: Probe) -> Iterator[None]:
    hidden = Decoder.hidden

    def moved(decoder: Decoder, tokens: Tensor) -> Tensor:
        found = hidden(decoder, tokens)
        is_padded = tokens[:, -1] == 0
        if not torch.is_grad_enabled() or probe.step is None or not bool(is_padded.any()):
            return found
        probe.reached()
        before = decoder.rotations()
        decoder._rotations = before.roll(-1, dims=0)
        try:
            return torch.where(is_padded[:, None, None], hidden(decoder, tokens), found)
        finally:
            decoder._rotations = before

    with replaced("rlcore.models.decoder:Decoder.hidden", moved):
        yield


@fault("review: ends that are padding", "the last token is not learned, in the pass alone", phases=LOSS)
def end_dropped_in_the_pass(probe: Probe) -> Iterator[None]:
    get = Microbatch.__getitem__

    def without(microbatch: Microbatch, name: str) -> Tensor:
        found = get(microbatch, name)
        if name != "loss_mask" or probe.step is None:
            return found
        shorter = found & found.roll(-1, dims=-1)
        wrong = torch.where(shorter.any(-1, keepdim=True), shorter, found)
        probe.reached(has_effect=not torch.equal(wrong, found))
        return wrong

    with replaced("rlcore.data.microbatches:Microbatch.__getitem__", without):
        yield


@fault("review: a sign", "the bonus for entropy is a penalty", phases=LOSS, setting="entropic")
def entropy_upside_down(probe: Probe) -> Iterator[None]:
    policy_loss = honest("rlcore.recipes.grpo:policy_loss")

    def negative(config: Any, section: Any, *given: Any) -> Any:
        probe.reached()
        return policy_loss(config, section.model_copy(update={"entropy_coef": -section.entropy_coef}), *given)

    with replaced("rlcore.recipes.grpo:policy_loss", negative):
        yield


@fault(
    "review: tied weights",
    "the gradient of a tied embedding counts twice",
    phases=BACKWARD,
    leaves=("embedding", "gradient"),
)
def tied_gradient_doubled(probe: Probe) -> Iterator[None]:
    taken = honest(TAKEN)

    def doubled(parameter: Any) -> Tensor:
        found: Tensor = taken(parameter)
        if parameter.dim() != 2 or len(parameter) >= parameter.shape[1]:
            return found
        probe.reached()
        return found * 2

    with replaced(TAKEN, doubled):
        yield


@fault(
    "review: a sum in bfloat16",
    "the value head adds up in bfloat16",
    phases=("reference", *LOSS, *BACKWARD),
    setting="ppo",
)
def values_in_bfloat16(probe: Probe) -> Iterator[None]:
    values = honest("rlcore.recipes.ppo:values")

    def rounded(critic: Any, microbatch: Any) -> Tensor:
        found: Tensor = values(critic, microbatch)
        short = found.bfloat16().float()
        probe.reached(has_effect=not torch.equal(found, short))
        return short

    with replaced("rlcore.recipes.ppo:values", rounded):
        yield


@fault("review: a set of microbatches", "a worker adds up in the order of a set", phases=BACKWARD, is_harmless=True)
def workers_by_set_order(probe: Probe) -> Iterator[None]:
    divide = honest(WORKERS)

    def by_hash(microbatches: Any, world_size: int) -> Any:
        probe.reached(has_effect=False)
        return [sorted(part, key=lambda each: hash(str(each.number))) for part in divide(microbatches, world_size)]

    with replaced(WORKERS, by_hash):
        yield


@fault(
    "review: a library's thread pool",
    "the first reward sets another number of threads",
    phases=(LEVEL,),
)
def threads_set_by_a_reward(probe: Probe) -> Iterator[None]:
    score = honest("rlcore.data.scoring:score")

    def and_set(*given: Any, **others: Any) -> Any:
        probe.reached(has_effect=False)
        torch.set_num_threads(3)
        return score(*given, **others)

    try:
        with replaced("rlcore.data.scoring:score", and_set):
            yield
    finally:
        torch.set_num_threads(1)


@fault(
    "review: a lazy import", "a pass sets another number of threads", phases=(LEVEL, *LOSS, *BACKWARD), setting="wide"
)
def threads_set_in_a_pass(probe: Probe) -> Iterator[None]:
    score = honest("rlcore.recipes.policy_pass:score")

    def and_set(*given: Any) -> Any:
        probe.reached()
        found = score(*given)
        torch.set_num_threads(5)
        return found

    try:
        with replaced("rlcore.recipes.policy_pass:score", and_set):
            yield
    finally:
        torch.set_num_threads(1)


@fault("review: attention's backward", "the gradient of keys leaves out the last one of a pass", phases=BACKWARD)
def last_key_without_a_gradient(probe: Probe) -> Iterator[None]:
    attention = honest("rlcore.models.decoder:attention")

    def cut(gradient: Tensor) -> Tensor:
        probe.reached(has_effect=bool(gradient[..., -1, :].any()))
        shorter = gradient.clone()
        shorter[..., -1, :] = 0
        return shorter

    def without(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
        if k.requires_grad:
            k.register_hook(cut)  # type: ignore[no-untyped-call]
        found: Tensor = attention(q, k, v, seen)
        return found

    with replaced("rlcore.models.decoder:attention", without):
        yield


@fault(
    "review: a clip before the last sum", "the norm leaves out the last microbatch", phases=OPTIMIZER, setting="clipped"
)
def norm_without_the_last(probe: Probe) -> Iterator[None]:
    taken, norm = honest(TAKEN), honest(NORM)
    lanes: dict[Any, list[Tensor]] = {}

    def remembered(parameter: Any) -> Tensor:
        found: Tensor = taken(parameter)
        lanes.setdefault(parameter, []).append(found.clone())
        return found

    def shorter(gradients: Any) -> float:
        right: float = norm(gradients)
        sums = [torch.stack(each[:-1]).sum(0) for each in lanes.values() if len(each) > 1]
        lanes.clear()
        wrong: float = norm(sums) if sums and probe.step is not None else right
        probe.reached(has_effect=wrong != right)
        return wrong

    with replaced(TAKEN, remembered), replaced(NORM, shorter):
        yield


@fault(
    "review: what is logged",
    "the gradient's norm is reported as it is after the clip",
    phases=OPTIMIZER,
    setting="clipped",
)
def norm_after_the_clip(probe: Probe) -> Iterator[None]:
    step = LocalTrainer.optimizer_step

    def clipped(trainer: LocalTrainer, *, learning_rate: float, max_norm: float | None) -> float:
        norm = step(trainer, learning_rate=learning_rate, max_norm=max_norm)
        told = min(norm, math.inf if max_norm is None else max_norm)
        probe.reached(has_effect=told != norm)
        return told

    with replaced(STEP, clipped):
        yield


@fault(
    "review: one optimizer section",
    "the critic learns at the rate of the policy",
    phases=OPTIMIZER,
    setting="critic_epochs",
)
def critic_at_the_policys_rate(probe: Probe) -> Iterator[None]:
    critic = honest("rlcore.trainers.models:LocalModels.critic")

    def as_the_policy(models: Any, learning_rate: float) -> Any:
        rate = models._config.optimizer.learning_rate
        probe.reached(has_effect=rate != learning_rate)
        return critic(models, rate)

    with replaced("rlcore.trainers.models:LocalModels.critic", as_the_policy):
        yield


FAULTS = (
    unjudged_in_the_mean,
    scaled_by_the_batch,
    bootstrapped_from_padding,
    reward_without_its_penalty,
    padded_rows_rotated,
    end_dropped_in_the_pass,
    entropy_upside_down,
    tied_gradient_doubled,
    values_in_bfloat16,
    workers_by_set_order,
    threads_set_by_a_reward,
    threads_set_in_a_pass,
    last_key_without_a_gradient,
    norm_without_the_last,
    norm_after_the_clip,
    critic_at_the_policys_rate,
)
