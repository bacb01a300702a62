"""Faults of going on from a checkpoint: what was not written, not read, or counted otherwise."""

import itertools
from collections.abc import Iterator
from typing import Any

from tests.guards.planted.patches import RESUME, Probe, fault, honest, replaced

RESTORE = "rlcore.trainers.local:restore_optimizer"
PROMPTS = "rlcore.recipes.rollout:prompts_of"


@fault("NeMo-RL #3599", "the optimizer begins anew", phases=(RESUME, "optimizer"))
def optimizer_state_lost(probe: Probe) -> Iterator[None]:
    def not_at_all(optimizer: Any, named: Any, state: Any) -> None:
        probe.reached(has_effect=bool(state))

    with replaced(RESTORE, not_at_all):
        yield


@fault("prime-rl #1095", "the moments are read, their count of steps is not", phases=(RESUME, "optimizer"))
def step_count_lost(probe: Probe) -> Iterator[None]:
    restore = honest(RESTORE)

    def without_count(optimizer: Any, named: Any, state: Any) -> None:
        probe.reached()
        restore(
            optimizer, named, {name: value * 0 if name.endswith(".step") else value for name, value in state.items()}
        )

    with replaced(RESTORE, without_count):
        yield


@fault("verl #7401", "prompts are counted from the resume on: an epoch is begun anew", phases=(RESUME, "rollout"))
def prompts_counted_anew(probe: Probe) -> Iterator[None]:
    prompts_of = honest(PROMPTS)
    asked = itertools.count()

    def the_next(state: Any, step: int) -> Any:
        number = next(asked)
        probe.reached(has_effect=number != step)
        return prompts_of(state, number)

    with replaced(PROMPTS, the_next):
        yield


@fault("verl #7401: an epoch skipped", "an epoch that was begun is not ended", phases=(RESUME, "rollout"))
def epoch_skipped(probe: Probe) -> Iterator[None]:
    prompts_of, resume = honest(PROMPTS), honest("rlcore.controllers.setup:resume")
    skipped = [0]

    def and_skip(state: Any, run: Any) -> Any:
        found = resume(state, run)
        per_epoch = len(state.task.train) // state.config.training.prompts_per_step
        skipped[0] = per_epoch - found.step % per_epoch or 1
        return found

    def later(state: Any, step: int) -> Any:
        probe.reached(has_effect=skipped[0] > 0)
        return prompts_of(state, step + skipped[0])

    with replaced("rlcore.controllers.setup:resume", and_skip), replaced(PROMPTS, later):
        yield


@fault("NeMo-RL #3722", "the reference is what the run goes on with", phases=(RESUME, "reference"), setting="updates")
def reference_of_the_resumed(probe: Probe) -> Iterator[None]:
    resume = honest("rlcore.controllers.setup:resume")

    def anchored_anew(state: Any, run: Any) -> Any:
        found = resume(state, run)
        probe.reached()
        state.reference.model.load_state_dict(state.decoder.state_dict())
        return found

    with replaced("rlcore.controllers.setup:resume", anchored_anew):
        yield


@fault("NeMo-RL #2651", "an adaptive coefficient begins anew", phases=(RESUME, "reward"), setting="ppo")
def coefficient_lost(probe: Probe) -> Iterator[None]:
    resume = honest("rlcore.controllers.setup:resume")

    def without(state: Any, run: Any) -> Any:
        before = state.kl_coef
        found = resume(state, run)
        probe.reached(has_effect=state.kl_coef != before)
        state.kl_coef = before
        return found

    with replaced("rlcore.controllers.setup:resume", without):
        yield


FAULTS = (
    optimizer_state_lost,
    step_count_lost,
    prompts_counted_anew,
    epoch_skipped,
    reference_of_the_resumed,
    coefficient_lost,
)
