"""Faults of going over one batch several times: which samples, in which order, against which policy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.guards.planted.fault import Probe, fault, honest, replaced

PERMUTATION = "rlcore.data.minibatches:permutation"
WORKERS = "rlcore.trainers.local:divide_among_workers"
TOTAL = "rlcore.trainers.local:GradientSum.total"
TAKEN = "rlcore.trainers.local:take_gradient"
LOSS = ("forward", "loss")
BACKWARD = ("backward",)


@fault("leggedrobotics/rsl_rl #148", "every epoch has the minibatches of the first", phases=LOSS, setting="updates")
def epochs_alike(probe: Probe) -> Iterator[None]:
    permutation = honest(PERMUTATION)

    def without_epoch(num_items: int, seed: int, name: str, step: int, epoch: int) -> list[int]:
        found: list[int] = permutation(num_items, seed, name, step, 0)
        probe.reached(has_effect=epoch > 0)
        return found

    with replaced(PERMUTATION, without_epoch):
        yield


@fault("invented", "minibatches are drawn with replacement", phases=LOSS, setting="updates")
def drawn_with_replacement(probe: Probe) -> Iterator[None]:
    permutation = honest(PERMUTATION)

    def replacing(num_items: int, *parts: Any) -> list[int]:
        order: list[int] = permutation(num_items, *parts)
        probe.reached()
        return [order[place - place % 2] for place in range(num_items)]

    with replaced(PERMUTATION, replacing):
        yield


@fault(
    "verifiers #320",
    "the ratio is to the policy as it was a minibatch ago",
    phases=("reference", *LOSS),
    setting="updates",
)
def old_logprobs_of_each_minibatch(probe: Probe) -> Iterator[None]:
    minibatches = honest("rlcore.recipes.grpo:minibatches")
    add, read = honest("rlcore.recipes.grpo:add_old_logprobs"), honest("rlcore.recipes.policy_pass:logprobs_in_bulk")
    states: list[Any] = []

    def remembered(state: Any, batch: Any) -> Any:
        states[:] = [state]
        return add(state, batch)

    def anew(batch: Any, *given: Any) -> Iterator[Any]:
        for number, minibatch in enumerate(minibatches(batch, *given)):
            for state in states if number else ():
                now = read(state, state.policy, batch)
                probe.reached(has_effect=not torch.equal(now, batch["old_logprobs"]))
                batch["old_logprobs"].copy_(now)
            yield minibatch

    with (
        replaced("rlcore.recipes.grpo:minibatches", anew),
        replaced("rlcore.recipes.grpo:add_old_logprobs", remembered),
    ):
        yield


@fault("torch: DistributedDataParallel", "gradients of workers are averaged, not added", phases=BACKWARD)
def averaged_over_workers(probe: Probe) -> Iterator[None]:
    divide, total = honest(WORKERS), honest(TOTAL)
    num_workers = [1]

    def counted(microbatches: Any, world_size: int) -> Any:
        num_workers[0] = world_size if probe.step is not None else 1
        return divide(microbatches, world_size)

    def averaged(gradients: Any) -> list[Tensor]:
        probe.reached(has_effect=num_workers[0] > 1)
        return [each / num_workers[0] for each in total(gradients)]

    with replaced(WORKERS, counted), replaced(TOTAL, averaged):
        yield


@fault("transformers #1563", "gradients are clipped lane by lane, before they are added", phases=BACKWARD)
def clipped_lane_by_lane(probe: Probe) -> Iterator[None]:
    taken = honest(TAKEN)

    def clipped(parameter: Any) -> Tensor:
        found: Tensor = taken(parameter)
        if probe.step is None:
            return found
        shorter = found * min(1.0, 0.05 / max(float(found.norm()), 1e-12))
        probe.reached(has_effect=not torch.equal(shorter, found))
        return shorter

    with replaced(TAKEN, clipped):
        yield


FAULTS = (
    epochs_alike,
    drawn_with_replacement,
    old_logprobs_of_each_minibatch,
    averaged_over_workers,
    clipped_lane_by_lane,
)
