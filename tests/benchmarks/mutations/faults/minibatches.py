"""Faults of going over one batch several times: which samples, in which order, against which policy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.trainers.local import Gradient
from tests.benchmarks.mutations.fault import Probe, fault, honest, replaced

PERMUTATION = "rlcore.batching.minibatches:permutation"
GRADIENT = "rlcore.recipes.policy_pass:gradient"
TAKEN = "rlcore.trainers.local:_taken"
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
    add, read = honest("rlcore.recipes.grpo:add_old_logprobs"), honest("rlcore.recipes.policy_pass:_logprobs")
    engines: list[Any] = []

    def remembered(engine: Any, batch: Any) -> None:
        engines[:] = [engine]
        add(engine, batch)

    def anew(batch: Any, *given: Any) -> Iterator[Any]:
        for number, minibatch in enumerate(minibatches(batch, *given)):
            for engine in engines if number else ():
                now = read(engine, engine.decoder, batch)
                probe.reached(has_effect=not torch.equal(now, batch["old_logprobs"]))
                batch["old_logprobs"] = now
            yield minibatch

    with (
        replaced("rlcore.recipes.grpo:minibatches", anew),
        replaced("rlcore.recipes.grpo:add_old_logprobs", remembered),
    ):
        yield


@fault("torch: DistributedDataParallel", "gradients of workers are averaged, not added", phases=BACKWARD)
def averaged_over_workers(probe: Probe) -> Iterator[None]:
    gradient = honest(GRADIENT)

    def averaged(model: Any, workers: Any, loss_of: Any) -> Gradient:
        found: Gradient = gradient(model, workers, loss_of)
        probe.reached(has_effect=len(workers) > 1)
        return found._replace(flat=found.flat / len(workers))

    with replaced(GRADIENT, averaged):
        yield


@fault("transformers #1563", "gradients are clipped lane by lane, before they are added", phases=BACKWARD)
def clipped_lane_by_lane(probe: Probe) -> Iterator[None]:
    taken = honest(TAKEN)

    def clipped(parameters: Any) -> Tensor:
        found: Tensor = taken(parameters)
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
