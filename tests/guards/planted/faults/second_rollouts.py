"""Faults of filters, stops, searches for items, prompts and reward models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.trajectory import Role, Trajectory
from rlcore.samplers.filters import Filters
from rlcore.samplers.stopping import StopText
from rlcore.types import Prompt
from tests.guards.planted.fault import Probe, fault, honest, replaced
from tests.guards.planted.faults.review_rollouts import _scored

ROLLOUT = ("rollout",)
REWARD = ("reward",)
READ = ("rollout", "forward")
TOKENS = ("tokens", "loss_mask")
DRAW = "rlcore.samplers.batching:draw"
TRAIN = "rlcore.recipes.rollout:prompts_of"


@fault("mzau/mlx-knife #68", "a stop string of two tokens is not seen", phases=ROLLOUT, setting="stopped_by_two")
def stops_within_a_token(probe: Probe) -> Iterator[None]:
    put = StopText.put

    def alone(text: StopText, token: int) -> bool:
        before = text.is_found
        found = put(text, token)
        is_within = any(stop in text._tokenizer.decode([token]) for stop in text._stops)
        probe.reached(has_effect=found and not before and not is_within)
        text.is_found = before or is_within
        return text.is_found

    with replaced("rlcore.samplers.stopping:StopText.put", alone):
        yield


@fault(
    "vllm-project/vllm-metal #728",
    "min-p is of the probabilities before the temperature",
    phases=ROLLOUT,
    setting="min_p",
)
def min_p_before_temperature(probe: Probe) -> Iterator[None]:
    allowed = Filters.allowed

    def warmer(filters: Filters, logits: Tensor) -> Tensor:
        found = allowed(filters, logits * 0.7)
        probe.reached(has_effect=not torch.equal(found, allowed(filters, logits)))
        return found

    with replaced("rlcore.samplers.filters:Filters.allowed", warmer):
        yield


@fault("signalnine/q27 #43", "top-p is of all tokens, not of the top k", phases=ROLLOUT, setting="top_k")
def top_p_before_top_k(probe: Probe) -> Iterator[None]:
    allowed = Filters.allowed

    def apart(filters: Filters, logits: Tensor) -> Tensor:
        everything = torch.full_like(filters.top_k, logits.shape[-1])
        by_p = allowed(replace(filters, top_k=everything), logits)
        by_k = allowed(replace(filters, top_p=torch.full_like(filters.top_p, torch.inf)), logits)
        probe.reached(has_effect=not torch.equal(by_p & by_k, allowed(filters, logits)))
        return by_p & by_k

    with replaced("rlcore.samplers.filters:Filters.allowed", apart):
        yield


@fault("vLLM: kv_cache_dtype", "keys and values are kept in bfloat16", phases=READ)
def cache_in_bfloat16(probe: Probe) -> Iterator[None]:
    put = honest("rlcore.models.cache:CachePositions.put")

    def rounded(at: Any, cache: Any, layer: int, k: Tensor, v: Tensor) -> Any:
        probe.reached()
        return put(at, cache, layer, k.bfloat16().float(), v.bfloat16().float())

    with replaced("rlcore.models.cache:CachePositions.put", rounded):
        yield


def _other_prompts(probe: Probe, change: Any) -> Iterator[None]:
    """Other prompts in the place of a step's: change(prompts) -> prompts."""
    prompts_of = honest(TRAIN)

    def others(state: Any, step: int) -> list[Prompt]:
        right: list[Prompt] = prompts_of(state, step)
        found: list[Prompt] = change(right)
        probe.reached(has_effect=found != right)
        return found

    with replaced(TRAIN, others):
        yield


@fault("verl-project/verl #1015", "long prompts lose their beginning", phases=ROLLOUT)
def prompts_cut_from_the_left(probe: Probe) -> Iterator[None]:
    yield from _other_prompts(probe, lambda prompts: [replace(each, tokens=each.tokens[-3:]) for each in prompts])


@fault("YangRui2015/Generalizable-Reward-Model #6", "a prompt's first token is there twice", phases=ROLLOUT)
def first_token_twice(probe: Probe) -> Iterator[None]:
    yield from _other_prompts(
        probe, lambda prompts: [replace(each, tokens=(each.tokens[0], *each.tokens)) for each in prompts]
    )


@fault("datasets.filter after zip", "answers belong to the prompt before", phases=REWARD, leaves=("rewards",))
def answers_moved(probe: Probe) -> Iterator[None]:
    def moved(prompts: list[Prompt]) -> list[Prompt]:
        return [
            replace(each, columns=other.columns)
            for each, other in zip(prompts, [prompts[-1], *prompts[:-1]], strict=True)
        ]

    yield from _other_prompts(probe, moved)


@fault(
    "DistributedSampler without set_epoch",
    "every epoch has the order of the first",
    phases=ROLLOUT,
    leaves=("prompt_ids",),
)
def epochs_in_one_order(probe: Probe) -> Iterator[None]:
    items = honest("rlcore.recipes.rollout:epoch_items")

    def of_the_first(first: int, count: int, num_items: int, *parts: Any) -> list[int]:
        right: list[int] = items(first, count, num_items, *parts)
        found: list[int] = items(first % num_items, count, num_items, *parts)
        probe.reached(has_effect=found != right)
        return found

    with replaced("rlcore.recipes.rollout:epoch_items", of_the_first):
        yield


# -------------------------------------------------------------------------------------------- searches for items


@fault(
    "transformers: cache not reordered",
    "beams have the log-probabilities of their siblings",
    phases=READ,
    setting="branched",
)
def beams_with_other_logprobs(probe: Probe) -> Iterator[None]:
    search = honest("rlcore.samplers.two_stage:beam_search")

    def exchanged(*given: Any) -> Any:
        found = search(*given)
        moved = []
        for beams in found:
            logprobs = [each.logprobs for each in beams]
            others = [*logprobs[1:], *logprobs[:1]]
            pairs = zip(beams, others, strict=True)
            moved.append([replace(one, logprobs=b if len(b) == len(one.tokens) else one.logprobs) for one, b in pairs])
        probe.reached(has_effect=moved != found)
        return moved

    with replaced("rlcore.samplers.two_stage:beam_search", exchanged):
        yield


@fault("vllm-project/vllm #2606", "the score of a beam is divided by a length", phases=ROLLOUT, setting="branched")
def beams_by_length(probe: Probe) -> Iterator[None]:
    best = honest("rlcore.samplers.beam_search:best")

    def by_mean(beams: Any, num_beams: int) -> Any:
        found = sorted(beams, key=lambda beam: (-beam.score / max(1, len(beam.tokens)), beam.tokens))[:num_beams]
        probe.reached(has_effect=found != best(beams, num_beams))
        return found

    with replaced("rlcore.samplers.beam_search:best", by_mean):
        yield


@fault(
    "a mask of all that is generated",
    "forced tokens are learned with an item",
    phases=("rollout", "forward"),
    setting="branched",
)
def forced_tokens_learned(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.recipes.rollout:dense_batch")

    def learned(trajectories: Sequence[Trajectory], scores: Any, *, pad_id: int) -> Any:
        batch = made(trajectories, scores, pad_id=pad_id)
        mask = batch["loss_mask"].clone()
        for row, trajectory in enumerate(trajectories):
            for turn in trajectory.turns:
                if turn.role is Role.FORCED:
                    mask[row, turn.begin : turn.end] = True
        probe.reached(has_effect=not torch.equal(mask, batch["loss_mask"]))
        return batch.extended(loss_mask=mask)

    with replaced("rlcore.recipes.rollout:dense_batch", learned):
        yield


@fault("best of n", "a reasoning is worth its best item", phases=REWARD, setting="branched", leaves=("rewards",))
def reasoning_worth_its_best(probe: Probe) -> Iterator[None]:
    mean = honest("rlcore.data.scoring:mean")

    def largest(values: Sequence[float]) -> float:
        probe.reached(has_effect=max(values) != mean(values))
        return max(values)

    with replaced("rlcore.data.scoring:mean", largest):
        yield


# ------------------------------------------------------------------------------------------------------- rewards


@fault(
    "a list without its Nones",
    "rewards after one that is missing move up",
    phases=REWARD,
    setting="ragged",
    leaves=("rewards", "included"),
)
def unjudged_move_up(probe: Probe) -> Iterator[None]:
    def compacted(rewards: list[float | None], *_: Any) -> list[float | None]:
        given = [each for each in rewards if each is not None]
        return [*given, *[None] * (len(rewards) - len(given))]

    yield from _scored(probe, compacted)


@fault(
    "a dict of reward functions",
    "weights belong to functions in the order of names",
    phases=REWARD,
    setting="awaited",
    leaves=("rewards",),
)
def weights_by_name(probe: Probe) -> Iterator[None]:
    total = honest("rlcore.data.scoring:_total")

    def by_name(rewards: Any, values: Any, index: int) -> Any:
        weights = [each.weight for each in rewards]
        order = sorted(range(len(rewards)), key=lambda at: rewards[at].name)
        other = [replace(rewards[at], weight=weight) for at, weight in zip(order, weights, strict=True)]
        own = {each.name: each for each in other}
        found = total([own[each.name] for each in rewards], values, index)
        probe.reached(has_effect=found != total(rewards, values, index))
        return found

    with replaced("rlcore.data.scoring:_total", by_name):
        yield


@fault(
    "skip_special_tokens=False", "reward functions are given texts with their end", phases=REWARD, leaves=("rewards",)
)
def texts_with_their_end(probe: Probe) -> Iterator[None]:
    arguments = honest("rlcore.data.scoring:_arguments")

    def with_end(trajectories: Any, step: int) -> Any:
        found = arguments(trajectories, step)
        texts = [f"{each}<eos>" for each in found.columns["completions"]]
        probe.reached()
        return replace(found, columns={**found.columns, "completions": texts})

    with replaced("rlcore.data.scoring:_arguments", with_end):
        yield


@fault(
    "EleutherAI/gpt-neox #1285",
    "a reward model is read at the last position of its batch",
    phases=REWARD,
    setting="modelled",
)
def reward_of_the_last_position(probe: Probe) -> Iterator[None]:
    forward = honest("rlcore.models.classifier:Classifier.forward")

    def at_the_end(classifier: Any, tokens: Tensor, lengths: Sequence[int]) -> Any:
        longest = [max(lengths)] * len(lengths)
        probe.reached(has_effect=longest != list(lengths))
        return forward(classifier, tokens, longest)

    with replaced("rlcore.models.classifier:Classifier.forward", at_the_end):
        yield


FAULTS = (
    stops_within_a_token,
    min_p_before_temperature,
    top_p_before_top_k,
    cache_in_bfloat16,
    prompts_cut_from_the_left,
    first_token_twice,
    answers_moved,
    epochs_in_one_order,
    beams_with_other_logprobs,
    beams_by_length,
    forced_tokens_learned,
    reasoning_worth_its_best,
    unjudged_move_up,
    weights_by_name,
    texts_with_their_end,
    reward_of_the_last_position,
)
