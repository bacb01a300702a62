"""Faults of baselines, aggregations, corrections and schedules."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.masks import only
from rlcore.algorithms.policy_losses import PolicyLoss
from rlcore.recipes.policy_pass import PolicyView
from tests.guards.planted.fault import LEVEL, RESUME, Probe, fault, honest, replaced

ADVANTAGE = ("advantage",)
LOSS = ("forward", "loss")
BACKWARD = ("backward",)
OPTIMIZER = ("optimizer",)
RATE = "rlcore.recipes.update:learning_rate"
TAKEN = "rlcore.trainers.local:take_gradient"
BUILD = "rlcore.trainers.local:build_adamw"
GSPO = "rlcore.recipes.grpo:gspo"
CLIP = "rlcore.recipes.grpo:ppo_clip"


@fault(
    "leave-one-out that leaves none out",
    "the baseline counts the completion's own reward",
    phases=ADVANTAGE,
    setting="loo",
)
def own_reward_in_the_baseline(probe: Probe) -> Iterator[None]:
    rloo = honest("rlcore.algorithms.advantages:rloo")

    def with_own(*given: Any, **others: Any) -> Tensor:
        found: Tensor = honest("rlcore.algorithms.advantages:dr_grpo")(*given, **others)
        probe.reached(has_effect=not torch.equal(found, rloo(*given, **others)))
        return found

    with replaced("rlcore.algorithms.advantages:rloo", with_own):
        yield


@fault(
    "verl-project/verl #5366",
    "the constant that losses are divided by is the padded length",
    phases=LOSS,
    setting="normed",
)
def horizon_of_the_padding(probe: Probe) -> Iterator[None]:
    shares = honest("rlcore.recipes.policy_pass:sample_shares")

    def padded(losses: Tensor, mask: Tensor, mode: Any, denominators: Any) -> Tensor:
        probe.reached(has_effect=mask.shape[1] != denominators.horizon)
        found: Tensor = shares(losses, mask, mode, denominators) * denominators.horizon / mask.shape[1]
        return found

    with replaced("rlcore.recipes.policy_pass:sample_shares", padded):
        yield


@fault("verl-project/verl #2776", "every completion counts alike, where every token should", phases=LOSS)
def means_of_means(probe: Probe) -> Iterator[None]:
    share = PolicyView.share

    def by_sample(view: PolicyView, denominators: Any, losses: Tensor, aggregation: Any, **seen: Tensor) -> Any:
        found = share(view, denominators, losses, "seq-mean-token-mean", **seen)
        probe.reached(
            has_effect=not torch.equal(found.loss, share(view, denominators, losses, aggregation, **seen).loss)
        )
        return found

    with replaced("rlcore.recipes.policy_pass:PolicyView.share", by_sample):
        yield


@fault("NVIDIA-NeMo/RL #2269", "the ratio of a completion is a product, not a mean", phases=LOSS, setting="gspo")
def gspo_by_the_product(probe: Probe) -> Iterator[None]:
    gspo = honest(GSPO)

    def product(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **bounds: Any) -> PolicyLoss:
        right: PolicyLoss = gspo(logprobs, old, advantages, mask, **bounds)
        log_ratio = only(mask, logprobs) - only(mask, old)
        ratio = (log_ratio.sum(-1, keepdim=True).detach() + log_ratio - log_ratio.detach()).exp()
        clipped = ratio.clamp(1 - bounds["clip_eps_low"], 1 + bounds["clip_eps_high"])
        losses = only(mask, torch.maximum(-advantages * ratio, -advantages * clipped))
        probe.reached(has_effect=not torch.equal(losses, right.losses))
        return right._replace(losses=losses)

    with replaced(GSPO, product):
        yield


@fault(
    "verl-project/verl #4105",
    "a gradient flows through the weights of a correction",
    phases=BACKWARD,
    setting="corrected",
)
def weights_with_a_gradient(probe: Probe) -> Iterator[None]:
    share = PolicyView.share

    def flowing(view: PolicyView, denominators: Any, losses: Tensor, aggregation: Any, **seen: Tensor) -> Any:
        probe.reached()
        flow = (view.logprobs - view.logprobs.detach()).exp()
        return share(view, denominators, losses * only(view.loss_mask, flow), aggregation, **seen)

    with replaced("rlcore.recipes.policy_pass:PolicyView.share", flowing):
        yield


@fault("tensorflow/agents #352", "a value is clipped to what it is now", phases=LOSS, setting="valued")
def value_clip_without_effect(probe: Probe) -> Iterator[None]:
    value_loss = honest("rlcore.recipes.ppo:value_loss")

    def to_itself(values: Tensor, old: Tensor, *given: Any, **others: Any) -> Any:
        right = value_loss(values, old, *given, **others)
        found = value_loss(values, values.detach(), *given, **others)
        probe.reached(has_effect=not torch.equal(right.losses, found.losses))
        return found

    with replaced("rlcore.recipes.ppo:value_loss", to_itself):
        yield


@fault("dual clip without its condition", "the dual clip bounds gains too", phases=LOSS, setting="dual")
def dual_clip_of_gains(probe: Probe) -> Iterator[None]:
    clip = honest(CLIP)

    def both(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **bounds: Any) -> PolicyLoss:
        right: PolicyLoss = clip(logprobs, old, advantages, mask, **bounds)
        cap = advantages.abs() * bounds["dual_clip"] * 0.5
        found = only(mask, right.losses.clamp(-cap, cap))
        probe.reached(has_effect=not torch.equal(found, right.losses))
        return right._replace(losses=found)

    with replaced(CLIP, both):
        yield


@fault("warm-up counted from 1", "the critic's warm-up is a step short", phases=(*LOSS, *OPTIMIZER), setting="warming")
def critic_warmup_short(probe: Probe) -> Iterator[None]:
    ppo_step = honest("rlcore.controllers.synchronous:ppo_step")

    def short(state: Any, section: Any, step: int) -> Any:
        probe.reached(has_effect=step == section.num_critic_warmup_steps - 1)
        fewer = section.model_copy(update={"num_critic_warmup_steps": section.num_critic_warmup_steps - 1})
        return ppo_step(state, fewer, step)

    with replaced("rlcore.controllers.synchronous:ppo_step", short):
        yield


@fault("ServiceNow/Fast-LLM #542", "norms are not decayed, and should be", phases=OPTIMIZER, setting="decayed")
def norms_without_decay(probe: Probe) -> Iterator[None]:
    build = honest(BUILD)

    def grouped(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        probe.reached()
        optimizer: torch.optim.AdamW = build(model, section, learning_rate)
        (group,) = optimizer.param_groups
        norms = [each for each in group["params"] if each.dim() == 1]
        group["params"] = [each for each in group["params"] if each.dim() != 1]
        optimizer.add_param_group({**group, "params": norms, "weight_decay": 0.0})
        return optimizer

    with replaced(BUILD, grouped):
        yield


@fault("optimizers of 16 bits", "moments are rounded to bfloat16 after each step", phases=OPTIMIZER)
def moments_in_bfloat16(probe: Probe) -> Iterator[None]:
    build = honest(BUILD)

    def of_16_bits(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        optimizer: torch.optim.AdamW = build(model, section, learning_rate)
        step = optimizer.step

        def rounded(*given: Any) -> None:
            step(*given)
            probe.reached(has_effect=probe.step is not None)
            for state in optimizer.state.values() if probe.step is not None else ():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name].copy_(state[name].bfloat16())

        optimizer.step = rounded  # type: ignore[method-assign, assignment]
        return optimizer

    with replaced(BUILD, of_16_bits):
        yield


@fault("gradients in the weights' type", "gradients of microbatches are added in bfloat16", phases=BACKWARD)
def gradients_in_bfloat16(probe: Probe) -> Iterator[None]:
    taken = honest(TAKEN)

    def rounded(parameter: Any) -> Tensor:
        probe.reached()
        found: Tensor = taken(parameter).bfloat16().float()
        return found

    with replaced(TAKEN, rounded):
        yield


@fault(
    "vllm-project/speculators #1104",
    "a schedule ends with the epochs, not with the run",
    phases=OPTIMIZER,
    setting="hurried",
)
def schedule_too_long(probe: Probe) -> Iterator[None]:
    rate = honest(RATE)

    def longer(section: Any, peak: float, step: int, num_steps: int) -> float:
        found: float = rate(section, peak, step, num_steps * 2)
        probe.reached(has_effect=found != rate(section, peak, step, num_steps))
        return found

    with replaced(RATE, longer):
        yield


@fault("THUDM/slime #1546", "a resumed schedule counts its steps twice", phases=(RESUME, *OPTIMIZER), setting="hurried")
def schedule_counted_twice(probe: Probe) -> Iterator[None]:
    rate, resume = honest(RATE), honest("rlcore.controllers.setup:resume")
    first = [0]

    def remembered(state: Any, run: Any) -> Any:
        found = resume(state, run)
        first[0] = found.step
        return found

    def ahead(section: Any, peak: float, step: int, num_steps: int) -> float:
        probe.reached(has_effect=first[0] > 0)
        return float(rate(section, peak, step + first[0], num_steps))

    with replaced("rlcore.controllers.setup:resume", remembered), replaced(RATE, ahead):
        yield


@fault(
    "fairchem #269", "the entropy that is reported is a mean of microbatches' means", phases=("forward", "optimizer")
)
def entropy_of_means(probe: Probe) -> Iterator[None]:
    add = honest("rlcore.observability.step_metrics:StepMetrics.add")

    def by_part(metrics: Any, update: Any) -> None:
        add(metrics, update)
        parts = [float(each.observed["entropy"][each.loss_mask].mean()) for each in update.losses]
        told = metrics._updates[update.trainer][-1]
        probe.reached(has_effect=sum(parts) / len(parts) != told["entropy"])
        told["entropy"] = sum(parts) / len(parts)

    with replaced("rlcore.observability.step_metrics:StepMetrics.add", by_part):
        yield


@fault("ArcticTraining #62", "the loss that is reported is that of the first microbatch", phases=("loss", "optimizer"))
def loss_of_the_first(probe: Probe) -> Iterator[None]:
    add = honest("rlcore.observability.step_metrics:StepMetrics.add")

    def first_only(metrics: Any, update: Any) -> None:
        add(metrics, update)
        probe.reached()
        metrics._updates[update.trainer][-1]["loss"] = float(update.losses[0].loss)

    with replaced("rlcore.observability.step_metrics:StepMetrics.add", first_only):
        yield


@fault(
    "torch.set_default_dtype in a library",
    "the first reward changes torch's default type",
    phases=(LEVEL, "optimizer", *LOSS),
)
def default_type_changed(probe: Probe) -> Iterator[None]:
    score = honest("rlcore.data.scoring:score")

    def and_change(*given: Any, **others: Any) -> Any:
        probe.reached()
        torch.set_default_dtype(torch.float64)
        return score(*given, **others)

    try:
        with replaced("rlcore.data.scoring:score", and_change):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@fault("a library that wants speed", "the first reward allows nondeterministic operations", phases=(LEVEL,))
def determinism_turned_off(probe: Probe) -> Iterator[None]:
    score = honest("rlcore.data.scoring:score")

    def and_allow(*given: Any, **others: Any) -> Any:
        probe.reached()
        torch.use_deterministic_algorithms(False)
        return score(*given, **others)

    try:
        with replaced("rlcore.data.scoring:score", and_allow):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


FAULTS = (
    own_reward_in_the_baseline,
    horizon_of_the_padding,
    means_of_means,
    gspo_by_the_product,
    weights_with_a_gradient,
    value_clip_without_effect,
    dual_clip_of_gains,
    critic_warmup_short,
    norms_without_decay,
    moments_in_bfloat16,
    gradients_in_bfloat16,
    schedule_too_long,
    schedule_counted_twice,
    entropy_of_means,
    loss_of_the_first,
    default_type_changed,
    determinism_turned_off,
)
