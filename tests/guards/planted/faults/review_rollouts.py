"""Faults of rollouts and rewards that a reviewer planted, who had not written the checks."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory
from rlcore.samplers.batching import ContinuousBatch
from rlcore.samplers.drawing import Plan
from rlcore.samplers.filters import Filters
from rlcore.samplers.gumbel import GumbelNoise
from rlcore.samplers.rows import Rows, RunningSequence
from tests.guards.planted.fault import Probe, fault, honest, replaced

ROLLOUT = ("rollout",)
REWARD = ("reward",)
READ = ("rollout", "forward")
TOKENS = ("tokens", "loss_mask")
KEY = "rlcore.recipes.rollout:completion_key"
DENSE = "rlcore.recipes.rollout:dense_batch"
DRAW = "rlcore.samplers.batching:draw"
SCORE = "rlcore.data.scoring:score"
SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
EVALUATE = "rlcore.controllers.synchronous:evaluate"


@fault("review: vLLM's swapping", "keys and values of a preempted completion come back a position late", phases=READ)
def swapped_in_late(probe: Probe) -> Iterator[None]:
    admit = honest("rlcore.samplers.batching:ContinuousBatch._admit")

    def late(batch: ContinuousBatch) -> None:
        first = len(batch._rows)
        admit(batch)
        for row, running in enumerate(batch._rows.running_sequences[first:], first):
            probe.reached(has_effect=bool(running.tokens))
            for held in (batch._cache.keys, batch._cache.values) if running.tokens else ():
                held[:, row] = held[:, row].roll(1, dims=-2)

    with replaced("rlcore.samplers.batching:ContinuousBatch._admit", late):
        yield


@fault("review: TRL's two temperatures", "the sampler is colder, and reports log-probabilities at 1", phases=ROLLOUT)
def colder_than_it_says(probe: Probe) -> Iterator[None]:
    draw = honest(DRAW)

    def colder(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = draw(logits / 0.7, plan, noise, states)
        probe.reached(has_effect=not torch.equal(tokens, draw(logits, plan, noise, states)[0]))
        return tokens, honest("rlcore.samplers.drawing:token_logprobs")(logits, tokens)

    with replaced(DRAW, colder):
        yield


@fault("review: seeds by index in a batch", "a key counts completions, and ignores their prompt", phases=ROLLOUT)
def key_of_the_place(probe: Probe) -> Iterator[None]:
    key = honest(KEY)
    places: dict[int, Iterator[int]] = {}

    def counted(**parts: Any) -> int:
        probe.reached()
        place = next(places.setdefault(parts["step"], itertools.count()))
        return int(key(**parts | {"prompt_id": "", "sample_index": place}))

    with replaced(KEY, counted):
        yield


@fault("review: masks of labels", "the loss mask stands a position late", phases=ROLLOUT)
def mask_shifted(probe: Probe) -> Iterator[None]:
    made = honest(DENSE)

    def shifted(completions: Any, scores: Any, *, pad_id: int) -> Any:
        batch = made(completions, scores, pad_id=pad_id)
        probe.reached()
        return batch.extended(loss_mask=batch["loss_mask"].roll(1, dims=-1))

    with replaced(DENSE, shifted):
        yield


@fault("review: torch.rand in float32", "uniform numbers have 24 bits: no noise is above 17.4", phases=ROLLOUT)
def uniforms_of_24_bits(probe: Probe) -> Iterator[None]:
    uniforms = honest("rlcore.samplers.gumbel:uniforms")

    def coarse(bits: Tensor) -> Tensor:
        probe.reached()
        found: Tensor = uniforms((bits >> 40) << 40)
        return found

    with replaced("rlcore.samplers.gumbel:uniforms", coarse):
        yield


@fault(
    "review: sorts that are not stable",
    "among equals, top-p chooses by the row",
    phases=ROLLOUT,
    setting="half_rounded",
)
def ties_by_the_row(probe: Probe) -> Iterator[None]:
    allowed = Filters.allowed

    def by_row(filters: Filters, logits: Tensor) -> Tensor:
        found = allowed(filters, logits)
        other = allowed(filters, logits.flip(-1)).flip(-1)
        found[1::2] = other[1::2]
        probe.reached(has_effect=not torch.equal(found, allowed(filters, logits)))
        return found

    with replaced("rlcore.samplers.filters:Filters.allowed", by_row):
        yield


@fault("review: vLLM's condense", "a row that moves up draws with the noise of its new slot", phases=ROLLOUT)
def moved_without_its_noise(probe: Probe) -> Iterator[None]:
    remove = Rows.remove

    def kept(rows: Rows, which: Sequence[int]) -> tuple[list[RunningSequence], list[int], list[int]]:
        before = rows._states.clone()
        found = remove(rows, which)
        probe.reached(has_effect=bool(found[2]))
        rows._states[found[2]] = before[found[2]]
        return found

    with replaced("rlcore.samplers.rows:Rows.remove", kept):
        yield


@fault(
    "review: tables in half precision",
    "the sampler's rotations are rounded from position 17 on",
    phases=READ,
    setting="lengthy",
)
def far_rotations_rounded(probe: Probe) -> Iterator[None]:
    begin = honest(f"{SAMPLER}.__init__")

    def rounded(sampler: Any, *given: Any, **others: Any) -> None:
        begin(sampler, *given, **others)
        probe.reached()
        table = sampler._decoder._rotations.clone()
        table[17:] = table[17:].half().float()
        sampler._decoder._rotations = table

    with replaced(f"{SAMPLER}.__init__", rounded):
        yield


@fault("review: a cadence from the options", "keys count the evaluations that there were", phases=ROLLOUT)
def keys_count_evaluations(probe: Probe) -> Iterator[None]:
    key, prompts_of = honest(KEY), honest("rlcore.recipes.rollout:prompts_of")
    every = [0]

    def remembered(state: Any, step: int) -> Any:
        every[0] = state.config.output.evaluate_every
        return prompts_of(state, step)

    def counted(**parts: Any) -> int:
        num_evaluations = parts["step"] // every[0] if every[0] else 0
        probe.reached(has_effect=num_evaluations > 0)
        return int(key(**parts | {"step": parts["step"] + 1000 * num_evaluations}))

    with replaced("rlcore.recipes.rollout:prompts_of", remembered), replaced(KEY, counted):
        yield


@fault("review: a counter in a sampler", "evaluations advance a counter of the sampling keys", phases=ROLLOUT)
def evaluations_advance_keys(probe: Probe) -> Iterator[None]:
    evaluate, key = honest(EVALUATE), honest(KEY)
    count = [0]

    def and_count(state: Any, prompts: Any, *, step: int) -> Any:
        count[0] += 1
        return evaluate(state, prompts, step=step)

    def counted(**parts: Any) -> int:
        probe.reached(has_effect=count[0] > 0)
        return int(key(**parts | {"step": parts["step"] + 1000 * count[0]}))

    with replaced(EVALUATE, and_count), replaced(KEY, counted):
        yield


@fault(
    "review: evaluations in train mode", "an evaluation draws from torch's generator", phases=ROLLOUT, is_harmless=True
)
def evaluation_draws_alone(probe: Probe) -> Iterator[None]:
    evaluate = honest(EVALUATE)

    def drawing(state: Any, prompts: Any, *, step: int) -> Any:
        probe.reached(has_effect=False)
        torch.rand(len(prompts))
        return evaluate(state, prompts, step=step)

    with torch.random.fork_rng(), replaced(EVALUATE, drawing):
        yield


@fault(
    "review: train and test exchanged", "evaluations are of training prompts", phases=ROLLOUT, leaves=("evaluation",)
)
def evaluated_on_training_prompts(probe: Probe) -> Iterator[None]:
    evaluate = honest(EVALUATE)

    def on_train(state: Any, prompts: Any, *, step: int) -> Any:
        probe.reached()
        return evaluate(state, state.task.train[: len(prompts)], step=step)

    with replaced(EVALUATE, on_train):
        yield


def _scored(probe: Probe, change: Any) -> Iterator[None]:
    """Other totals in the place of those of the reward functions: change(rewards, completions) -> rewards."""
    score = honest(SCORE)

    def scored(functions: Any, completions: Sequence[Trajectory], *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        moved = change(list(found.rewards), completions, step)
        probe.reached(has_effect=moved != found.rewards)
        return replace(found, rewards=moved)

    with replaced(SCORE, scored):
        yield


@fault("review: a reward server", "rewards go through JSON with 15 digits", phases=REWARD, setting="awaited")
def rewards_of_15_digits(probe: Probe) -> Iterator[None]:
    def short(rewards: list[float | None], *_: Any) -> list[float | None]:
        return [None if each is None else float(f"{each / 3:.15g}") * 3 for each in rewards]

    yield from _scored(probe, short)


def _swapped(rewards: list[float | None], at: int) -> None:
    other = (at + 5) % len(rewards)
    rewards[at], rewards[other] = rewards[other], rewards[at]


@fault("review: a race of one in fifty samples", "now and then two rewards are exchanged", phases=REWARD)
def rewards_swapped_by_chance(probe: Probe) -> Iterator[None]:
    def by_hash(rewards: list[float | None], completions: Sequence[Trajectory], step: int) -> list[float | None]:
        for at, completion in enumerate(completions):
            if hash(f"race {completion.name} {step}") % 10 == 0:
                _swapped(rewards, at)
        return rewards

    yield from _scored(probe, by_hash)


@fault(
    "review: a race of one in fifty steps", "in a few steps two rewards are exchanged", phases=REWARD, setting="long"
)
def rewards_swapped_in_few_steps(probe: Probe) -> Iterator[None]:
    def by_hash(rewards: list[float | None], completions: Sequence[Trajectory], step: int) -> list[float | None]:
        if hash(f"swap {step}") % 20 == 0:
            for at in range(0, len(rewards), 5):
                _swapped(rewards, at)
        return rewards

    yield from _scored(probe, by_hash)


@fault(
    "review: lists are copied, their lists are not",
    "what a reward function changes, the next one sees",
    phases=REWARD,
    setting="changing",
)
def arguments_shared(probe: Probe) -> Iterator[None]:
    copied = honest("rlcore.data.scoring:_copied")

    def as_it_is(value: Any) -> Any:
        probe.reached(has_effect=isinstance(value, list))
        return value if isinstance(value, list) else copied(value)

    with replaced("rlcore.data.scoring:_copied", as_it_is):
        yield


@fault(
    "review: zip with another list",
    "greedy rewards are given to other prompts",
    phases=REWARD,
    setting="remax",
    leaves=("greedy_rewards",),
)
def greedy_rewards_moved(probe: Probe) -> Iterator[None]:
    score = honest("rlcore.recipes.greedy_baseline:score")

    def rotated(functions: Any, completions: Any, *, step: int) -> Scores:
        found: Scores = score(functions, completions, step=step)
        moved = [*found.rewards[1:], *found.rewards[:1]]
        probe.reached(has_effect=moved != found.rewards)
        return replace(found, rewards=moved)

    with replaced("rlcore.recipes.greedy_baseline:score", rotated):
        yield


FAULTS = (
    swapped_in_late,
    colder_than_it_says,
    key_of_the_place,
    mask_shifted,
    uniforms_of_24_bits,
    ties_by_the_row,
    moved_without_its_noise,
    far_rotations_rounded,
    keys_count_evaluations,
    evaluations_advance_keys,
    evaluation_draws_alone,
    evaluated_on_training_prompts,
    rewards_of_15_digits,
    rewards_swapped_by_chance,
    rewards_swapped_in_few_steps,
    arguments_shared,
    greedy_rewards_moved,
)
