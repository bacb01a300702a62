"""Faults between a lane's gradient and the weights: who adds, who clips, which step, which rate."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.numerics.tree_sum import TreeSum
from tests.guards.planted.patches import Probe, fault, honest, replaced

TREE = "rlcore.trainers.local:TreeSum"
TAKEN = "rlcore.trainers.local:take_gradient"
BACKWARD = ("backward",)
OPTIMIZER = ("optimizer",)


class _AsTheyCome(TreeSum):
    """Adds lanes one to the other, as `grad += lane` does."""

    def _put(self, place: tuple[int, int], value: Tensor) -> None:
        held = self._nodes.pop((0, 0), None)
        self._nodes[0, 0] = value if held is None else held + value

    def total(self) -> Tensor | None:
        return self._nodes.get((0, 0))


def _summed_by(probe: Probe, tree: type[TreeSum]) -> Iterator[None]:
    def made(num_values: int) -> TreeSum:
        probe.reached(has_effect=probe.step is not None)
        return tree(num_values)

    with replaced(TREE, made):
        yield


@fault("verl: gradients of replicas", "workers add up what they have, and then each other", phases=BACKWARD)
def sum_by_workers(probe: Probe) -> Iterator[None]:
    yield from _summed_by(probe, _AsTheyCome)


@fault("TRL #583", "gradients are not set to zero between two passes", phases=BACKWARD)
def gradients_kept(probe: Probe) -> Iterator[None]:
    def left_there(parameter: Any) -> Tensor:
        probe.reached(has_effect=probe.step is not None)
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()

    with replaced(TAKEN, left_there):
        yield


@fault("torchtitan #3575", "gradients are set to zero before each microbatch: the last one counts", phases=BACKWARD)
def last_gradient_only(probe: Probe) -> Iterator[None]:
    taken: Callable[[Any], Tensor] = honest(TAKEN)
    held: dict[Any, Tensor] = {}

    def forgetting(parameter: Any) -> Tensor:
        if probe.step is None:
            return taken(parameter)
        probe.reached(has_effect=parameter in held)
        if parameter in held:
            held[parameter].zero_()
        held[parameter] = taken(parameter)
        return held[parameter]

    with replaced(TAKEN, forgetting):
        yield


@fault("rlevo #328", "each worker clips what it has", phases=BACKWARD)
def clip_by_worker(probe: Probe) -> Iterator[None]:
    class Clipped(TreeSum):
        def absorb(self, other: TreeSum) -> None:
            probe.reached(has_effect=probe.step is not None)
            for place, value in other.nodes():
                other._nodes[place] = value / max(1.0, float(value.norm()))
            super().absorb(other)

    with replaced(TREE, Clipped):
        yield


@fault("OpenSeq2Seq #192", "the norm is computed, and nothing is clipped", phases=OPTIMIZER)
def clip_without_effect(probe: Probe) -> Iterator[None]:
    multiply = torch._foreach_mul_

    def not_at_all(tensors: Any, factor: Any) -> Any:
        if isinstance(factor, float) and 0 < factor < 1 and len(tensors) > 1 and probe.step is not None:
            probe.reached()
            return None
        return multiply(tensors, factor)

    with replaced("torch:_foreach_mul_", not_at_all):
        yield


@fault("torch: the fused AdamW", "the optimizer is another implementation of the same", phases=OPTIMIZER)
def fused_adamw(probe: Probe) -> Iterator[None]:
    def fused(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        probe.reached()
        return torch.optim.AdamW(
            model.parameters(),
            lr=learning_rate,
            betas=(section.beta1, section.beta2),
            eps=section.eps,
            weight_decay=section.weight_decay,
            fused=True,
        )

    with replaced("rlcore.trainers.local:build_adamw", fused):
        yield


@fault(
    "torch: CosineAnnealingLR", "the learning rate follows from the one before", phases=OPTIMIZER, setting="scheduled"
)
def recursive_rate(probe: Probe) -> Iterator[None]:
    cosine = honest("rlcore.recipes.update:cosine_lr")
    rate = [0.0]
    number = [0]

    def from_the_last(step: int, *, peak: float, num_steps: int, **others: Any) -> float:
        first = others.get("num_warmup_steps", 0)
        found: float = cosine(number[0], peak=peak, num_steps=num_steps, **others)
        if number[0] > first:
            done = math.pi * (number[0] - first) / (num_steps - first)
            before = math.pi * (number[0] - 1 - first) / (num_steps - first)
            found = (1 + math.cos(done)) / (1 + math.cos(before)) * rate[0]
        rate[0] = found
        number[0] += 1
        probe.reached(has_effect=found != cosine(step, peak=peak, num_steps=num_steps, **others))
        return found

    with replaced("rlcore.recipes.update:cosine_lr", from_the_last):
        yield


@fault("transformers: warm-up from 0", "the first step has a learning rate of 0", phases=("optimizer", "sync"))
def step_without_a_rate(probe: Probe) -> Iterator[None]:
    rate = honest("rlcore.recipes.update:constant_lr")

    def from_zero(step: int, **given: Any) -> float:
        probe.reached(has_effect=step == 0)
        return 0.0 if step == 0 else rate(step, **given)

    with replaced("rlcore.recipes.update:constant_lr", from_zero):
        yield


@fault("mlx-lm-lora #55", "the optimizer steps, and the policy stays as it was", phases=("optimizer", "sync"))
def policy_stays(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.trainers.local:build_adamw")

    def without_effect(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        probe.reached()
        optimizer: torch.optim.AdamW = made(model, section, learning_rate)
        step = optimizer.step

        def and_back(*given: Any) -> None:
            before = [each.detach().clone() for each in model.parameters()]
            step(*given)
            with torch.no_grad():
                for each, value in zip(model.parameters(), before, strict=True):
                    each.copy_(value)

        optimizer.step = and_back  # type: ignore[method-assign, assignment]
        return optimizer

    with replaced("rlcore.trainers.local:build_adamw", without_effect):
        yield


@fault("torch: Adam, not AdamW", "weight decay is added to the gradient", phases=OPTIMIZER, setting="decayed")
def decay_in_the_gradient(probe: Probe) -> Iterator[None]:
    def adam(model: Any, section: Any, learning_rate: float) -> torch.optim.Adam:
        probe.reached()
        return torch.optim.Adam(
            model.parameters(),
            lr=learning_rate,
            betas=(section.beta1, section.beta2),
            eps=section.eps,
            weight_decay=section.weight_decay,
            foreach=True,
        )

    with replaced("rlcore.trainers.local:build_adamw", adam):
        yield


@fault("songmzhang/KDFlow #4", "the schedule goes on with each minibatch", phases=OPTIMIZER, setting="hurried")
def rate_by_minibatch(probe: Probe) -> Iterator[None]:
    rate = honest("rlcore.recipes.update:learning_rate")
    taken: dict[int, int] = {}

    def further(section: Any, peak: float, step: int, num_steps: int) -> float:
        taken[step] = taken.get(step, -1) + 1
        found: float = rate(section, peak, step + taken[step], num_steps)
        probe.reached(has_effect=found != rate(section, peak, step, num_steps))
        return found

    with replaced("rlcore.recipes.update:learning_rate", further):
        yield


@fault("QwenLM/Qwen3-TTS #326", "the optimizer steps twice with one gradient", phases=OPTIMIZER)
def stepped_twice(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.trainers.local:build_adamw")

    def twice(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        optimizer: torch.optim.AdamW = made(model, section, learning_rate)
        step = optimizer.step

        def and_again(*given: Any) -> None:
            probe.reached()
            step(*given)
            step(*given)

        optimizer.step = and_again  # type: ignore[method-assign, assignment]
        return optimizer

    with replaced("rlcore.trainers.local:build_adamw", twice):
        yield


@fault(
    "huggingface/pytorch-openai-transformer-lm #6",
    "the head is not among the parameters that the optimizer moves",
    phases=OPTIMIZER,
    setting="untied",
    leaves=("head",),
)
def head_not_moved(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.trainers.local:build_adamw")

    def without(model: Any, section: Any, learning_rate: float) -> torch.optim.AdamW:
        probe.reached()
        optimizer: torch.optim.AdamW = made(model, section, learning_rate)
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if each is not model.head]
        return optimizer

    with replaced("rlcore.trainers.local:build_adamw", without):
        yield


FAULTS = (
    sum_by_workers,
    gradients_kept,
    last_gradient_only,
    clip_by_worker,
    clip_without_effect,
    fused_adamw,
    recursive_rate,
    step_without_a_rate,
    policy_stays,
    decay_in_the_gradient,
    rate_by_minibatch,
    stepped_twice,
    head_not_moved,
)
