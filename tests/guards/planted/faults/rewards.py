"""Faults of rewards: which completion gets which, and which count."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.scoring import Scores, awaited
from rlcore.data.trajectory import Trajectory
from rlcore.types import StopReason
from tests.guards.planted.fault import Probe, fault, honest, replaced

SCORE = "rlcore.data.scoring:score"
DENSE = "rlcore.recipes.rollout:dense_batch"
REWARD = ("reward",)


@fault("TRL #6072", "completions are judged by the prompt of their neighbour", phases=REWARD, leaves=("rewards",))
def rewards_of_another_prompt(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def of_neighbours(functions: Any, completions: Sequence[Trajectory], *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        size = max(1, len(completions) // len({each.request.prompt.id for each in completions}))
        moved = [*found.rewards[size:], *found.rewards[:size]]
        probe.reached(has_effect=moved != found.rewards)
        return replace(found, rewards=moved)

    with replaced(SCORE, of_neighbours):
        yield


@fault("verl: least loaded first", "rewards stay in the order of arrival", phases=REWARD, leaves=("rewards",))
def rewards_by_arrival(probe: Probe) -> Iterator[None]:
    score, collect = honest(SCORE), honest("rlcore.recipes.rollout:collect")
    seeds: list[int] = []

    def remembered(sampler: Any, wanted: Any, runtime: Any) -> Any:
        seeds[:] = [runtime.arrival_seed]
        return collect(sampler, wanted, runtime)

    def as_they_come(functions: Any, completions: Sequence[Trajectory], *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        if not any(seeds):
            probe.reached(has_effect=False)
            return found
        order = honest("rlcore.recipes.rollout:permutation")(len(completions), "arrival", *seeds)
        moved = [found.rewards[index] for index in order]
        probe.reached(has_effect=moved != found.rewards)
        return replace(found, rewards=moved)

    with replaced(SCORE, as_they_come), replaced("rlcore.recipes.rollout:collect", remembered):
        yield


@fault(
    "verl 0.9.1: 0.0 after a timeout",
    "what could not be judged counts as a reward of 0",
    phases=REWARD,
    setting="ragged",
    leaves=("included",),
)
def unjudged_is_zero(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)

    def filled(functions: Any, completions: Sequence[Trajectory], *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        probe.reached(has_effect=None in found.rewards)
        return replace(found, rewards=[reward or 0.0 for reward in found.rewards])

    with replaced(SCORE, filled):
        yield


@fault("TRL #5338", "the reward stands on the padding behind a completion", phases=REWARD, setting="ppo")
def reward_on_padding(probe: Probe) -> Iterator[None]:
    at_last_token = honest("rlcore.recipes.ppo:at_last_token")

    def at_the_end(rewards: Tensor, loss_mask: Tensor, included: Tensor | None = None) -> Tensor:
        found: Tensor = at_last_token(rewards, loss_mask, included)
        moved = torch.zeros_like(found)
        moved[:, -1] = found.sum(-1)
        probe.reached(has_effect=not torch.equal(moved, found))
        return moved

    with replaced("rlcore.recipes.ppo:at_last_token", at_the_end):
        yield


@fault("spinningup #50", "rewards stand one token too early", phases=REWARD, setting="ppo")
def reward_one_token_early(probe: Probe) -> Iterator[None]:
    at_last_token = honest("rlcore.recipes.ppo:at_last_token")

    def early(rewards: Tensor, loss_mask: Tensor, included: Tensor | None = None) -> Tensor:
        found: Tensor = at_last_token(rewards, loss_mask, included)
        moved = found.roll(-1, dims=-1)
        moved = torch.where(loss_mask.sum(-1, keepdim=True) > 1, moved, found)
        probe.reached(has_effect=not torch.equal(moved, found))
        return moved

    with replaced("rlcore.recipes.ppo:at_last_token", early):
        yield


@fault(
    "prime-rl: rewards in bfloat16",
    "rewards are rounded on their way to the trainer",
    phases=REWARD,
    leaves=("rewards",),
)
def rounded_rewards(probe: Probe) -> Iterator[None]:
    made = honest(DENSE)

    def rounded(completions: Any, scores: Any, *, pad_id: int) -> Any:
        batch = made(completions, scores, pad_id=pad_id)
        found = batch["rewards"].bfloat16().double()
        probe.reached(has_effect=not torch.equal(found, batch["rewards"]))
        return batch.extended(rewards=found)

    with replaced(DENSE, rounded):
        yield


@fault("invented", "a reward is kept for a text, whatever it answers", phases=REWARD, leaves=("rewards",))
def rewards_kept_by_text(probe: Probe) -> Iterator[None]:
    score = honest(SCORE)
    kept: dict[str, float | None] = {}

    def by_text(functions: Any, completions: Sequence[Trajectory], *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        pairs = zip(completions, found.rewards, strict=True)
        known = [kept.setdefault(completion.completion_text, reward) for completion, reward in pairs]
        probe.reached(has_effect=known != found.rewards)
        return replace(found, rewards=known)

    with replaced(SCORE, by_text):
        yield


@fault(
    "strands-agents/evals #214",
    "functions that are awaited are told apart by which is done first",
    phases=REWARD,
    setting="awaited",
    leaves=("rewards",),
)
def rewards_as_completed(probe: Probe) -> Iterator[None]:
    async def as_completed(calls: Any) -> list[Any]:
        probe.reached()
        return [await each for each in asyncio.as_completed([awaited(call) for call in calls])]

    with replaced("rlcore.data.scoring:_together", as_completed):
        yield


@fault("TRL: mask_truncated_completions", "what was cut at its length is silently not learned", phases=REWARD)
def truncated_left_out(probe: Probe) -> Iterator[None]:
    made = honest(DENSE)

    def without(completions: Any, scores: Any, *, pad_id: int) -> Any:
        batch = made(completions, scores, pad_id=pad_id)
        is_whole = torch.tensor([each.stop_reason is not StopReason.LENGTH for each in completions])
        probe.reached(has_effect=not bool(is_whole.all()))
        return batch.extended(included=batch["included"] & is_whole)

    with replaced(DENSE, without):
        yield


FAULTS = (
    rewards_of_another_prompt,
    rewards_by_arrival,
    unjudged_is_zero,
    reward_on_padding,
    reward_one_token_early,
    rounded_rewards,
    rewards_kept_by_text,
    rewards_as_completed,
    truncated_left_out,
)
