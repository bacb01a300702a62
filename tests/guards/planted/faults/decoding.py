"""Faults of a sampler at work: what a row is read with, which tokens may be drawn, and where a completion ends."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.samplers.batching import ContinuousBatch
from rlcore.samplers.drawing import Plan, at_temperature
from rlcore.samplers.gumbel import GumbelNoise
from rlcore.samplers.rows import Rows
from rlcore.types import SampleRequest
from tests.guards.planted.fault import Probe, fault, honest, replaced

SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
DRAW = "rlcore.samplers.batching:draw"
ROLLOUT = ("rollout",)
TOKENS = ("tokens", "loss_mask")
READ = ("rollout", "forward")
"""The sampler's numbers, compared with the trainer's."""


@fault("kekzl/imp #1301", "a row that moves up finds the keys and values of who was there", phases=READ)
def moved_without_its_cache(probe: Probe) -> Iterator[None]:
    def not_at_all(cache: KeyValueCache, sources: Sequence[int], targets: Sequence[int]) -> None:
        probe.reached()

    with replaced("rlcore.models.cache:KeyValueCache.move", not_at_all):
        yield


@fault("invented", "of a prompt that several share, the last position is not copied", phases=READ)
def prompt_copied_short(probe: Probe) -> Iterator[None]:
    spread = KeyValueCache.spread

    def shorter(cache: KeyValueCache, first: int, which: Tensor, length: int) -> None:
        probe.reached()
        spread(cache, first, which, length - 1)

    with replaced("rlcore.models.cache:KeyValueCache.spread", shorter):
        yield


@fault("TRL #6800", "positions are counted on by one where a completion begins again", phases=READ)
def position_off_after_preemption(probe: Probe) -> Iterator[None]:
    decode, read = ContinuousBatch._decode, Decoder.read
    at_work: list[ContinuousBatch] = []

    def remembered(batch: ContinuousBatch) -> None:
        at_work[:] = [batch]
        try:
            decode(batch)
        finally:
            at_work.clear()

    def further(decoder: Decoder, tokens: Tensor, cache: KeyValueCache, at: CachePositions) -> Tensor:
        for batch in at_work:
            began_again = torch.tensor([[int(bool(running.tokens))] for running in batch._rows.running_sequences])
            probe.reached(has_effect=bool(began_again.any()))
            at = replace(at, positions=at.positions + began_again)
        return read(decoder, tokens, cache, at)

    with (
        replaced("rlcore.samplers.batching:ContinuousBatch._decode", remembered),
        replaced("rlcore.models.decoder:Decoder.read", further),
    ):
        yield


@fault("EleutherAI/gpt-neox #1003", "the sampler's table of rotations is rounded to bfloat16", phases=("sync", *READ))
def rotations_rounded(probe: Probe) -> Iterator[None]:
    begin = honest(f"{SAMPLER}.__init__")

    def rounded(sampler: Any, *given: Any, **others: Any) -> None:
        begin(sampler, *given, **others)
        probe.reached()
        sampler._decoder._rotations = sampler._decoder._rotations.bfloat16().float()

    with replaced(f"{SAMPLER}.__init__", rounded):
        yield


@fault(
    "sgl-project/sglang-jax #1563",
    "top-p is of the probabilities before the temperature",
    phases=ROLLOUT,
    setting="filtered",
    leaves=TOKENS,
)
def top_p_before_temperature(probe: Probe) -> Iterator[None]:
    draw = honest(DRAW)

    def of_the_raw(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
        assert plan.filters is not None
        colder = at_temperature(logits, plan)
        scores = noise(states).add_(colder).masked_fill(~plan.filters.allowed(logits), -torch.inf)
        tokens = scores.argmax(-1)
        probe.reached(has_effect=not torch.equal(tokens, draw(logits, plan, noise, states)[0]))
        return tokens, _logprobs(colder, tokens)

    with replaced(DRAW, of_the_raw):
        yield


@fault("TRL #6789", "log-probabilities are of what top-p has left", phases=READ, setting="filtered")
def logprobs_of_what_was_left(probe: Probe) -> Iterator[None]:
    draw = honest(DRAW)

    def renormalised(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
        assert plan.filters is not None
        tokens, logprobs = draw(logits, plan, noise, states)
        colder = at_temperature(logits, plan)
        found = _logprobs(colder.masked_fill(~plan.filters.allowed(colder), -torch.inf), tokens)
        probe.reached(has_effect=not torch.equal(found, logprobs))
        return tokens, found

    with replaced(DRAW, renormalised):
        yield


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    found: Tensor = honest("rlcore.samplers.drawing:token_logprobs")(logits, tokens)
    return found


@fault("invented", "a completion has one noise for all of its positions", phases=ROLLOUT, leaves=TOKENS)
def noise_without_a_position(probe: Probe) -> Iterator[None]:
    states = Rows.states

    def the_first(rows: Rows, first: int) -> Tensor:
        found = rows._states[first : len(rows), 0]
        probe.reached(has_effect=not torch.equal(found, states(rows, first)))
        return found

    with replaced("rlcore.samplers.rows:Rows.states", the_first):
        yield


@fault("vllm: ignore_eos", "what is said behind the end of sequence belongs to a completion", phases=ROLLOUT)
def goes_on_after_its_end(probe: Probe) -> Iterator[None]:
    at_an_end = Rows.at_an_end

    def by_length(rows: Rows, first: int) -> list[int]:
        ended = at_an_end(rows, first)
        found = [row for row in ended if rows._slots[row].ends_at <= rows.clock]
        probe.reached(has_effect=found != ended)
        return found

    with replaced("rlcore.samplers.rows:Rows.at_an_end", by_length):
        yield


@fault("max_length or max_new_tokens", "a completion ends a token before its length", phases=ROLLOUT)
def cut_a_token_early(probe: Probe) -> Iterator[None]:
    at_an_end = Rows.at_an_end

    def early(rows: Rows, first: int) -> list[int]:
        ended = at_an_end(rows, first)
        found = {row for row in range(first, len(rows)) if rows._slots[row].ends_at - 1 <= rows.clock}
        probe.reached(has_effect=not found <= {*ended})
        return sorted(found | {*ended})

    with replaced("rlcore.samplers.rows:Rows.at_an_end", early):
        yield


@fault(
    "vllm #3672",
    "a stop string is cut off the text, and its tokens stay",
    phases=("rollout", "reward"),
    setting="stopped",
)
def stop_string_cut_off(probe: Probe) -> Iterator[None]:
    made = honest(f"{SAMPLER}._trajectory")

    def without(sampler: Any, finished: Any) -> Trajectory:
        found: Trajectory = made(sampler, finished)
        text = found.completion_text
        for stop in found.request.params.stop_strings:
            text = text.removesuffix(stop)
        probe.reached(has_effect=text != found.completion_text)
        return replace(found, turns=(found.turns[0], replace(found.completion, text=text)))

    with replaced(f"{SAMPLER}._trajectory", without):
        yield


@fault("MILVLG/mcan-vqa #26", "the sampler stays as an evaluation has left it: greedy", phases=ROLLOUT, leaves=TOKENS)
def greedy_after_an_evaluation(probe: Probe) -> Iterator[None]:
    evaluate, sample = honest("rlcore.controllers.synchronous:evaluate"), honest(f"{SAMPLER}.sample")
    evaluated: list[int] = []

    def and_left(state: Any, prompts: Any, *, step: int) -> Any:
        found = evaluate(state, prompts, step=step)
        evaluated.append(step)
        return found

    def as_it_was_left(sampler: Any, requests: Sequence[SampleRequest], **others: Any) -> list[Trajectory]:
        probe.reached(has_effect=bool(evaluated))
        if not evaluated:
            return list(sample(sampler, requests, **others))
        greedy = [replace(each, params=replace(each.params, temperature=0.0)) for each in requests]
        found = sample(sampler, greedy, **others)
        return [replace(each, request=request) for each, request in zip(found, requests, strict=True)]

    with replaced("rlcore.controllers.synchronous:evaluate", and_left), replaced(f"{SAMPLER}.sample", as_it_was_left):
        yield


FAULTS = (
    moved_without_its_cache,
    prompt_copied_short,
    position_off_after_preemption,
    rotations_rounded,
    top_p_before_temperature,
    logprobs_of_what_was_left,
    noise_without_a_position,
    goes_on_after_its_end,
    cut_a_token_early,
    stop_string_cut_off,
    greedy_after_an_evaluation,
)
