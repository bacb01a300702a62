"""Faults of many processes: replicas of a sampler, simulated workers, and ranks that train together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.trainers.local import LocalTrainer
from rlcore.types import SampleRequest
from tests.guards.planted.fault import Probe, fault, honest, replaced

WORKERS = "rlcore.trainers.local:divide_among_workers"
TOTAL = "rlcore.trainers.local:GradientSum.total"
ABSORB = "rlcore.trainers.local:GradientSum.absorb"
STEP = "rlcore.trainers.local:LocalTrainer.optimizer_step"
SUM = "rlcore.trainers.data_parallel:canonical_sum"
BY_SHARE = "rlcore.samplers.replicas:ReplicaSampler._by_share"
TARGET = "rlcore.samplers.replica_target:ReplicaTarget"
TORCH_SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
RATE = "rlcore.recipes.update:learning_rate"
ROLLOUT = ("rollout",)
READ = ("rollout", "forward")
BACKWARD = ("backward",)
MOVED = ("optimizer", "backward", "sync", *READ)


def _rank() -> int:
    """The rank of this process among those that train together; -1 in one that trains alone."""
    return dist.get_rank() if dist.is_initialized() else -1


# ------------------------------------------------------------------------------------------------ replicas of a sampler


@fault(
    "OpenRLHF/OpenRLHF #660", "later syncs reach the first replica alone", phases=("sync", *READ), setting="replicated"
)
def replica_left_behind(probe: Probe) -> Iterator[None]:
    write = honest(f"{TARGET}.write")

    def first_only(target: Any, chunk: Any) -> Any:
        probe.reached(has_effect=probe.step is not None)
        return write(target, chunk) if probe.step is None else list(target._targets[0].write(chunk))

    with replaced(f"{TARGET}.write", first_only):
        yield


@fault(
    "vllm-project/vllm #32718",
    "a replica answers for the others, and has older weights",
    phases=("sync", *READ),
    setting="replicated",
)
def replica_with_older_weights(probe: Probe) -> Iterator[None]:
    sync = honest("rlcore.controllers.synchronous:sync")
    older: list[dict[str, Tensor]] = []

    def and_restored(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        receipt = sync(policy, target, version, previous, **others)
        second = target._targets[-1]._decoder
        for before in older:
            probe.reached()
            for name, value in second.named_parameters():
                value.data.copy_(before[name])
        older[:] = older or [{name: value.detach().clone() for name, value in policy.decoder().named_parameters()}]
        return receipt

    with replaced("rlcore.controllers.synchronous:sync", and_restored):
        yield


@fault(
    "verl: a pool of rollout servers",
    "shares of replicas are joined as they are done",
    phases=ROLLOUT,
    setting="replicated",
)
def shares_as_completed(probe: Probe) -> Iterator[None]:
    by_share = honest(BY_SHARE)

    def joined(sampler: ReplicaSampler, asked: Any, compute: Any) -> list[Any]:
        found: list[Any] = by_share(sampler, asked, compute)
        middle = len(found) // 2
        probe.reached(has_effect=len(sampler._samplers) > 1)
        return [*found[middle:], *found[:middle]] if len(sampler._samplers) > 1 else found

    with replaced(BY_SHARE, joined):
        yield


@fault("verl: replica_rank + seed, again", "each replica adds its number to the keys", phases=ROLLOUT)
def noise_by_replica(probe: Probe) -> Iterator[None]:
    by_share = honest(BY_SHARE)

    def salted(sampler: ReplicaSampler, asked: Any, compute: Any) -> list[Any]:
        def with_number(number: int, share: Sequence[SampleRequest]) -> list[Trajectory]:
            probe.reached(has_effect=number > 0)
            found = compute(number, [replace(each, key=each.key + number) for each in share])
            return [replace(each, request=request) for each, request in zip(found, share, strict=True)]

        return list(by_share(sampler, asked, with_number))

    with replaced(BY_SHARE, salted):
        yield


# ---------------------------------------------------------------------------------------------------- simulated workers


@fault(
    "huggingface/trl #1984: n_steps",
    "the KL controller counts the samples of one worker",
    phases=("reward",),
    setting="ppo",
    leaves=("token_rewards",),
)
def kl_horizon_of_a_worker(probe: Probe) -> Iterator[None]:
    adaptive, divide = honest("rlcore.recipes.ppo:adaptive_kl_coef"), honest(WORKERS)
    size = [1]

    def remembered(microbatches: Any, world_size: int) -> Any:
        size[0] = world_size
        return divide(microbatches, world_size)

    def of_a_worker(kl_coef: float, current: float, *, num_samples: int, **others: Any) -> float:
        probe.reached(has_effect=size[0] > 1)
        return float(adaptive(kl_coef, current, num_samples=num_samples // size[0], **others))

    with replaced(WORKERS, remembered), replaced("rlcore.recipes.ppo:adaptive_kl_coef", of_a_worker):
        yield


@fault(
    "huggingface/transformers #24088",
    "the schedule runs once for each worker",
    phases=("optimizer",),
    setting="hurried",
)
def schedule_of_each_worker(probe: Probe) -> Iterator[None]:
    rate, divide = honest(RATE), honest(WORKERS)
    size = [1]

    def remembered(microbatches: Any, world_size: int) -> Any:
        size[0] = world_size
        return divide(microbatches, world_size)

    def faster(section: Any, peak: float, step: int, num_steps: int) -> float:
        probe.reached(has_effect=size[0] > 1)
        return float(rate(section, peak, step * size[0], num_steps))

    with replaced(WORKERS, remembered), replaced(RATE, faster):
        yield


@fault("a reduction by ReduceOp.MAX", "gradients of workers are reduced by their maximum", phases=BACKWARD)
def gradients_by_maximum(probe: Probe) -> Iterator[None]:
    absorb, total = honest(ABSORB), honest(TOTAL)
    parts: list[list[Tensor]] = []

    def remembered(gradients: Any, other: Any) -> None:
        parts.append([each.clone() for each in total(other)])
        absorb(gradients, other)

    def largest(gradients: Any) -> list[Tensor]:
        found: list[Tensor] = total(gradients)
        whole = [each for each in parts if len(each) == len(found)]
        parts.clear()
        probe.reached(has_effect=len(whole) > 1)
        return [torch.stack(each).amax(0) for each in zip(*whole, strict=True)] if len(whole) > 1 else found

    with replaced(ABSORB, remembered), replaced(TOTAL, largest):
        yield


@fault("an off-by-one in num_ranks", "the last of several workers is never asked", phases=("forward", "loss"))
def last_worker_forgotten(probe: Probe) -> Iterator[None]:
    divide = honest(WORKERS)

    def all_but_the_last(microbatches: Any, world_size: int) -> Any:
        parts = divide(microbatches, world_size)
        probe.reached(has_effect=world_size > 1)
        return parts[:-1] if world_size > 1 and probe.step is not None else parts

    with replaced(WORKERS, all_but_the_last):
        yield


# ------------------------------------------------------------------------------------------- ranks that train together


@fault(
    "a worker that was restarted",
    "one rank leaves out an update, and keeps its weights",
    phases=MOVED,
    is_in_ranks=True,
)
def rank_leaves_out_an_update(probe: Probe) -> Iterator[None]:
    step = LocalTrainer.optimizer_step
    count = [0]

    def mostly(trainer: LocalTrainer, **given: Any) -> float:
        count[0] += 1
        if _rank() != 1 or count[0] != 14:
            return step(trainer, **given)
        probe.reached()
        kept = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        norm = step(trainer, **given)
        with torch.no_grad():
            for parameter, value in zip(trainer.model.parameters(), kept, strict=True):
                parameter.copy_(value)
        return norm

    with replaced(STEP, mostly):
        yield


@fault("neuralmagic/sparseml #135", "the sum over ranks is divided by their number", phases=BACKWARD, is_in_ranks=True)
def averaged_over_ranks(probe: Probe) -> Iterator[None]:
    summed = honest(SUM)

    def averaged(ranks: Any, *given: Any) -> Tensor:
        probe.reached(has_effect=ranks.size > 1)
        found: Tensor = summed(ranks, *given) / ranks.size
        return found

    with replaced(SUM, averaged):
        yield


@fault("a cluster of two configurations", "one rank learns at another rate", phases=MOVED, is_in_ranks=True)
def rank_with_its_own_rate(probe: Probe) -> Iterator[None]:
    step = LocalTrainer.optimizer_step

    def own(trainer: LocalTrainer, *, learning_rate: float, max_norm: float | None) -> float:
        if _rank() == 1:
            probe.reached()
            learning_rate *= 1.01
        return step(trainer, learning_rate=learning_rate, max_norm=max_norm)

    with replaced(STEP, own):
        yield


@fault(
    "verl-project/verl #5969",
    "ranks are given equal numbers of microbatches, the rest is left",
    phases=("forward", "loss"),
    setting="thirds",
    is_in_ranks=True,
)
def rest_of_a_dispatch_left(probe: Probe) -> Iterator[None]:
    divided = honest("rlcore.data.microbatches:balanced")

    def equal(costs: Any, num_parts: int, *, equal_sizes: bool) -> list[list[int]]:
        parts: list[list[int]] = divided(costs, num_parts, equal_sizes=equal_sizes)
        least = min(map(len, parts))
        probe.reached(has_effect=any(len(part) > least for part in parts) and num_parts == 2)
        return [part[:least] for part in parts] if probe.step is not None and num_parts == 2 else parts

    with replaced("rlcore.data.microbatches:balanced", equal):
        yield


FAULTS = (
    replica_left_behind,
    replica_with_older_weights,
    shares_as_completed,
    noise_by_replica,
    kl_horizon_of_a_worker,
    schedule_of_each_worker,
    gradients_by_maximum,
    last_worker_forgotten,
    rank_leaves_out_an_update,
    averaged_over_ranks,
    rank_with_its_own_rate,
    rest_of_a_dispatch_left,
)
