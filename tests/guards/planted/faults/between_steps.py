"""Faults of what lies between two steps: an evaluation, a checkpoint, a sync of weights that are not the policy's."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tests.guards.planted.patches import RESUME, Probe, fault, honest, replaced

EVALUATE = "rlcore.controllers.synchronous:evaluate"
SAVE = "rlcore.checkpoints.resume:save_decoder"
LOAD = "rlcore.controllers.setup:resume"
RESTORE = "rlcore.trainers.local:restore_optimizer"
SYNC = "rlcore.controllers.synchronous:sync"
KEY = "rlcore.recipes.rollout:completion_key"


@fault("karpathy/char-rnn #17", "evaluations draw from the generator that training draws from", phases=("rollout",))
def evaluation_draws_too(probe: Probe) -> Iterator[None]:
    evaluate, key = honest(EVALUATE), honest(KEY)

    def drawing(state: Any, prompts: Any, *, step: int) -> Any:
        torch.rand(len(prompts))
        return evaluate(state, prompts, step=step)

    def drawn(**parts: Any) -> int:
        probe.reached()
        return int(key(**parts)) ^ int(torch.randint(1 << 62, ()))

    with torch.random.fork_rng(), replaced(EVALUATE, drawing), replaced(KEY, drawn):
        torch.manual_seed(0)
        yield


@fault("invented", "to save the policy rounds the one that learns on", phases=(RESUME, "optimizer", "sync"))
def saving_rounds_the_policy(probe: Probe) -> Iterator[None]:
    save = honest(SAVE)

    def rounded(decoder: Any, path: Any) -> None:
        probe.reached()
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.copy_(parameter.bfloat16())
        save(decoder, path)

    with replaced(SAVE, rounded):
        yield


@fault("invented", "the policy is saved in half precision", phases=(RESUME,))
def saved_in_half(probe: Probe) -> Iterator[None]:
    save = honest(SAVE)

    def halved(decoder: Any, path: Any) -> None:
        probe.reached(has_effect=probe.step != 5)
        save(copy.deepcopy(decoder).half().float(), path)

    with replaced(SAVE, halved):
        yield


@fault("invented", "a run goes on a step late", phases=(RESUME, "rollout"))
def resumed_a_step_late(probe: Probe) -> Iterator[None]:
    resume = honest(LOAD)

    def later(state: Any, run: Any) -> Any:
        found = resume(state, run)
        probe.reached()
        return replace(found, step=found.step + 1)

    with replaced(LOAD, later):
        yield


@fault("piergiaj/pytorch-i3d #38", "moments are read in another order of parameters", phases=(RESUME, "optimizer"))
def moments_by_position(probe: Probe) -> Iterator[None]:
    restore = honest(RESTORE)
    others = {"attention_norm": "mlp_norm", "mlp_norm": "attention_norm"}

    def by_position(optimizer: Any, named: Any, state: Any) -> None:
        moved = {".".join(others.get(part, part) for part in name.split(".")): value for name, value in state.items()}
        probe.reached(has_effect=list(moved) != list(state))
        restore(optimizer, named, moved)

    with replaced(RESTORE, by_position):
        yield


@fault("invented", "an average of the policies so far is sent to the sampler", phases=("sync",))
def average_sent(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)
    held: list[Any] = []

    def averaged(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        if previous is None:
            held[:] = [copy.deepcopy(policy.decoder())]
        with torch.no_grad():
            for mine, theirs in zip(held[0].parameters(), policy.decoder().parameters(), strict=True):
                mine.lerp_(theirs, 0.5)
        probe.reached(has_effect=previous is not None)
        return sync(held[0], target, version, previous, **others)

    with replaced(SYNC, averaged):
        yield


FAULTS = (
    evaluation_draws_too,
    saving_rounds_the_policy,
    saved_in_half,
    resumed_a_step_late,
    moments_by_position,
    average_sent,
)
