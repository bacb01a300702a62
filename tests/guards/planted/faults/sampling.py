"""Faults of a rollout: which prompts, with which noise, in which order, and what is kept of a completion."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.samplers.drawing import Plan
from rlcore.samplers.gumbel import GumbelNoise
from rlcore.samplers.rows import Rows
from rlcore.types import SampleRequest
from tests.guards.planted.fault import Probe, fault, honest, replaced

ROLLOUTS = "rlcore.recipes.rollout"
SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
KEY = f"{ROLLOUTS}:completion_key"
ROLLOUT = ("rollout",)
TOKENS = ("tokens", "loss_mask")
"""Other tokens are of other lengths, mostly, and the mask stands before them."""
DRAWN = ("rollout", "forward")
"""Where a completion's numbers belong that the trainer's are compared with."""


def _without(probe: Probe, **constants: Any) -> Iterator[None]:
    """Keys that do not depend on these parts."""
    key = honest(KEY)

    def short(**parts: Any) -> int:
        found: int = key(**parts | constants)
        probe.reached(has_effect=found != key(**parts))
        return found

    with replaced(KEY, short):
        yield


@fault("verl #6857", "the completions of a prompt share a seed", phases=ROLLOUT, leaves=TOKENS)
def siblings_share_a_seed(probe: Probe) -> Iterator[None]:
    yield from _without(probe, sample_index=0)


@fault("verl: a seed for each replica", "the noise of one prompt is used for all", phases=ROLLOUT, leaves=TOKENS)
def noise_shared_by_prompts(probe: Probe) -> Iterator[None]:
    yield from _without(probe, prompt_id="")


@fault("verl: replica_rank + seed", "the noise of a step is that of the step before", phases=ROLLOUT, leaves=TOKENS)
def noise_shared_by_steps(probe: Probe) -> Iterator[None]:
    yield from _without(probe, step=0)


@fault("vllm #19940", "the noise begins again when a completion is preempted", phases=ROLLOUT, leaves=TOKENS)
def noise_begins_again(probe: Probe) -> Iterator[None]:
    states = Rows.states

    def since_admission(rows: Rows, first: int) -> Tensor:
        found = states(rows, first)
        for row, running in enumerate(rows.running_sequences[first:], first):
            num_before = len(running.tokens)
            probe.reached(has_effect=num_before > 0)
            if num_before:
                found[row - first] = rows._states[row, int(rows._counts[row]) - num_before]
        return found

    with replaced("rlcore.samplers.rows:Rows.states", since_admission):
        yield


@fault("vllm: one generator for all requests", "noise goes by the order of arrival", phases=ROLLOUT, leaves=TOKENS)
def noise_by_arrival(probe: Probe) -> Iterator[None]:
    sample = honest(f"{SAMPLER}.sample")
    keys = itertools.count(1)

    def by_arrival(sampler: Any, requests: Sequence[SampleRequest], **others: Any) -> list[Trajectory]:
        probe.reached()
        given = [replace(request, key=next(keys) * 0x9E3779B97F4A7C15 % 2**64) for request in requests]
        found = sample(sampler, given, **others)
        return [replace(each, request=request) for each, request in zip(found, requests, strict=True)]

    with replaced(f"{SAMPLER}.sample", by_arrival):
        yield


@fault("unseeded sampling: vLLM's default", "the seed is the time of day", phases=ROLLOUT, leaves=TOKENS)
def seed_of_the_clock(probe: Probe) -> Iterator[None]:
    key = honest(KEY)

    def at_this_time(**parts: Any) -> int:
        probe.reached()
        return int(key(**parts)) ^ time.time_ns()

    with replaced(KEY, at_this_time):
        yield


@fault(
    "sglang #35697",
    "top-p moves the noise from tokens to ranks",
    phases=ROLLOUT,
    setting="filtered",
    leaves=TOKENS,
)
def noise_by_rank(probe: Probe) -> Iterator[None]:
    draw = honest("rlcore.samplers.batching:draw")

    def ranked(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = draw(logits, plan, noise, states)
        assert plan.filters is not None
        at_temperature = logits / plan.temperatures[0][0]
        order = torch.argsort(at_temperature, dim=-1, descending=True, stable=True)
        scores = at_temperature.gather(-1, order).double() + noise(states)
        scores = scores.masked_fill(~plan.filters.allowed(at_temperature).gather(-1, order), -torch.inf)
        found = order.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
        probe.reached(has_effect=not torch.equal(found, tokens))
        return found, at_temperature.float().log_softmax(-1).gather(-1, found.unsqueeze(-1)).squeeze(-1)

    with replaced("rlcore.samplers.batching:draw", ranked):
        yield


@fault("vllm #51367", "uniform numbers have 8 bits, so that rare tokens are never drawn", phases=ROLLOUT, leaves=TOKENS)
def coarse_uniforms(probe: Probe) -> Iterator[None]:
    uniforms = honest("rlcore.samplers.gumbel:uniforms")

    def coarse(bits: Tensor) -> Tensor:
        probe.reached()
        found: Tensor = uniforms((bits >> 56) << 56)
        return found

    with replaced("rlcore.samplers.gumbel:uniforms", coarse):
        yield


@fault("verl V1: collected as completed", "completions stay in the order of arrival", phases=ROLLOUT)
def unsorted_arrival(probe: Probe) -> Iterator[None]:
    collect = honest(f"{ROLLOUTS}:collect")

    def as_they_come(sampler: Any, wanted: Sequence[SampleRequest], runtime: Any) -> list[Trajectory]:
        found: list[Trajectory] = collect(sampler, wanted, runtime)
        arrived = sampler.sample(_arrival(wanted, runtime.arrival_seed))
        probe.reached(has_effect=[each.request for each in arrived] != [each.request for each in found])
        return list(arrived)

    with replaced(f"{ROLLOUTS}:collect", as_they_come):
        yield


def _arrival(wanted: Sequence[SampleRequest], seed: int) -> list[SampleRequest]:
    order = honest(f"{ROLLOUTS}:permutation")(len(wanted), "arrival", seed) if seed else range(len(wanted))
    return [wanted[index] for index in order]


@fault("TRL #3098", "completions are given to requests in the order in which they were done", phases=ROLLOUT)
def completed_first_served_first(probe: Probe) -> Iterator[None]:
    sample = honest(f"{SAMPLER}.sample")

    def by_length(sampler: Any, requests: Sequence[SampleRequest], **others: Any) -> list[Trajectory]:
        found: list[Trajectory] = sample(sampler, requests, **others)
        done = sorted(found, key=lambda completion: len(completion.completion_tokens))
        probe.reached(has_effect=done != found)
        return done

    with replaced(f"{SAMPLER}.sample", by_length):
        yield


@fault("noether #180", "prompts stand in the order of a set of texts", phases=ROLLOUT, leaves=("prompt_ids",))
def prompts_of_a_set(probe: Probe) -> Iterator[None]:
    prompts_of = honest(f"{ROLLOUTS}:prompts_of")

    def unordered(state: Any, step: int) -> list[Any]:
        drawn = {prompt.id: prompt for prompt in prompts_of(state, step)}
        found = [drawn[id] for id in set(drawn)]
        probe.reached(has_effect=found != list(drawn.values()))
        return found

    with replaced(f"{ROLLOUTS}:prompts_of", unordered):
        yield


@fault("NeMo-RL #2180", "weights are written while completions are drawn", phases=("rollout", "sync"))
def weights_change_meanwhile(probe: Probe) -> Iterator[None]:
    read = honest("rlcore.samplers.batching:ContinuousBatch._decode")

    def and_written(batch: Any) -> None:
        if probe.step == 1:
            probe.reached()
            batch._decoder.norm.data.mul_(1.0001)
        read(batch)

    with replaced("rlcore.samplers.batching:ContinuousBatch._decode", and_written):
        yield


@fault("ms-swift #6343", "what was read of a prompt is kept over a change of the weights", phases=DRAWN)
def stale_prefix_cache(probe: Probe) -> Iterator[None]:
    read = honest("rlcore.samplers.batching:ContinuousBatch._read")
    kept: dict[tuple[int, ...], Tensor] = {}

    def once(batch: Any, sequences: Sequence[tuple[int, ...]], first: int) -> Tensor:
        ends: Tensor = read(batch, sequences, first)
        found = torch.stack([kept.setdefault(each, end) for each, end in zip(sequences, ends, strict=True)])
        probe.reached(has_effect=not torch.equal(found, ends))
        return found

    with replaced("rlcore.samplers.batching:ContinuousBatch._read", once):
        yield


@fault("OpenOneRec: two-stage rollout", "log-probabilities of completions are returned as zeros", phases=DRAWN)
def logprobs_of_zero(probe: Probe) -> Iterator[None]:
    made = honest(f"{SAMPLER}._trajectory")

    def without(sampler: Any, finished: Any) -> Trajectory:
        probe.reached()
        found: Trajectory = made(sampler, finished)
        return replace(found, logprobs=(0.0,) * len(found.logprobs))

    with replaced(f"{SAMPLER}._trajectory", without):
        yield


@fault("TRL #5303", "the end of sequence is taken for padding, and not learned", phases=ROLLOUT, leaves=("loss_mask",))
def end_taken_for_padding(probe: Probe) -> Iterator[None]:
    made = honest(f"{ROLLOUTS}:dense_batch")

    def by_token(completions: Any, scores: Any, *, pad_id: int) -> Any:
        batch = made(completions, scores, pad_id=pad_id)
        mask = batch["loss_mask"]
        eos_id = next((each.tokens[-1] for each in completions if each.stop_reason == "eos"), pad_id)
        found = mask & (batch["tokens"] != eos_id)
        found[:, :] = torch.where(found.any(-1, keepdim=True), found, mask)
        probe.reached(has_effect=not torch.equal(mask, found))
        return batch.extended(loss_mask=found)

    with replaced(f"{ROLLOUTS}:dense_batch", by_token):
        yield


@fault("slime #117", "the last token of a completion is lost where it is read back from its text", phases=ROLLOUT)
def retokenised(probe: Probe) -> Iterator[None]:
    made = honest(f"{SAMPLER}._trajectory")

    def through_text(sampler: Any, finished: Any) -> Trajectory:
        completion: Trajectory = made(sampler, finished)
        tokens = tuple(sampler._tokenizer.encode(completion.completion_text)) or completion.completion_tokens[:1]
        probe.reached(has_effect=tokens != completion.completion_tokens)
        return build_single_turn(
            completion.request,
            tokens,
            completion.completion_logprobs[: len(tokens)],
            text=completion.completion_text,
            stop_reason=completion.stop_reason,
            policy_version=sampler.policy_version,
            weights_digest=sampler.weights_digest,
        )

    with replaced(f"{SAMPLER}._trajectory", through_text):
        yield


FAULTS = (
    siblings_share_a_seed,
    noise_shared_by_prompts,
    noise_shared_by_steps,
    noise_begins_again,
    noise_by_arrival,
    seed_of_the_clock,
    noise_by_rank,
    coarse_uniforms,
    unsorted_arrival,
    completed_first_served_first,
    prompts_of_a_set,
    weights_change_meanwhile,
    stale_prefix_cache,
    logprobs_of_zero,
    end_taken_for_padding,
    retokenised,
)
