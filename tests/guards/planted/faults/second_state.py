"""Faults of references, sampler weights, evaluations and what a checkpoint holds for others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.controllers.evaluation import Evaluation
from tests.guards.planted.fault import RESUME, Probe, fault, honest, replaced

SYNC = "rlcore.controllers.synchronous:sync"
SAVE = "rlcore.checkpoints.resume:save_decoder"
LOAD = "rlcore.controllers.setup:resume"
BULK = "rlcore.recipes.policy_pass:logprobs_in_bulk"
EVALUATE = "rlcore.controllers.synchronous:evaluate"
SAMPLE = "rlcore.samplers.torch_sampler:TorchSampler.sample"
REFERENCE = ("reference",)
READ = ("rollout", "forward")


@fault(
    "a moving average as the anchor",
    "the reference follows as an average, unseen by torch",
    phases=REFERENCE,
    setting="updates",
)
def reference_averaged(probe: Probe) -> Iterator[None]:
    add, sync = honest("rlcore.recipes.grpo:add_ref_logprobs"), honest(SYNC)
    states: list[Any] = []

    def remembered(state: Any, batch: Any) -> Any:
        states[:] = [state]
        return add(state, batch)

    def and_average(*given: Any, **others: Any) -> Any:
        for state in states:
            probe.reached()
            pairs = zip(state.reference.model.parameters(), state.policy.model.parameters(), strict=True)
            for frozen, parameter in pairs:
                frozen.data.lerp_(parameter.data, 0.01)
        return sync(*given, **others)

    with replaced("rlcore.recipes.grpo:add_ref_logprobs", remembered), replaced(SYNC, and_average):
        yield


@fault(
    "OpenRLHF/OpenRLHF #634",
    "the reference's log-probabilities are of logits in bfloat16",
    phases=REFERENCE,
    setting="updates",
)
def reference_in_bfloat16(probe: Probe) -> Iterator[None]:
    bulk = honest(BULK)

    def rounded(state: Any, reader: Any, batch: Any) -> Tensor:
        found: Tensor = bulk(state, reader, batch)
        if reader is not state.reference:
            return found
        probe.reached()
        return found.bfloat16().float()

    with replaced(BULK, rounded):
        yield


@fault("vLLM: quantization on load", "the sampler computes with weights of 16 bits", phases=("sync", *READ))
def sampled_in_half(probe: Probe) -> Iterator[None]:
    sample = honest(SAMPLE)

    def rounded(sampler: Any, requests: Any, **others: Any) -> Any:
        kept = [parameter.data for parameter in sampler._decoder.parameters()]
        probe.reached()
        for parameter in sampler._decoder.parameters():
            parameter.data = parameter.data.half().float()
        try:
            return sample(sampler, requests, **others)
        finally:
            for parameter, value in zip(sampler._decoder.parameters(), kept, strict=True):
                parameter.data = value

    with replaced(SAMPLE, rounded):
        yield


@fault(
    "a tied head that is loaded alone",
    "the sampler's head is not tied to its embedding",
    phases=("sync",),
    setting="grpo",
)
def head_untied_in_the_sampler(probe: Probe) -> Iterator[None]:
    begin = honest("rlcore.samplers.torch_sampler:TorchSampler.__init__")

    def untied(sampler: Any, decoder: Any, *given: Any, **others: Any) -> None:
        begin(sampler, decoder, *given, **others)
        probe.reached()
        sampler._decoder.head = torch.nn.Parameter(decoder.embedding.detach().clone(), requires_grad=False)

    with replaced("rlcore.samplers.torch_sampler:TorchSampler.__init__", untied):
        yield


@fault(
    "evaluations are greedy elsewhere",
    "an evaluation is greedy, and training is not",
    phases=("rollout",),
    leaves=("evaluation",),
)
def evaluated_greedily(probe: Probe) -> Iterator[None]:
    params = honest("rlcore.controllers.evaluation:sampling_params")

    def greedy(state: Any) -> Any:
        probe.reached()
        return replace(params(state), temperature=0.0)

    with replaced("rlcore.controllers.evaluation:sampling_params", greedy):
        yield


@fault("a mean over a selection", "an evaluation counts the best half", phases=("reward",), leaves=("evaluation",))
def evaluation_of_the_best(probe: Probe) -> Iterator[None]:
    evaluate = honest(EVALUATE)

    def best(state: Any, prompts: Any, *, step: int) -> Evaluation:
        found: Evaluation = evaluate(state, prompts, step=step)
        largest = max(reward for reward in found.scores.rewards if reward is not None)
        probe.reached(has_effect=largest != found.reward_mean)
        return replace(found, reward_mean=largest)

    with replaced(EVALUATE, best):
        yield


@fault(
    "torchtitan: asynchronous checkpoints", "moments are saved as they were a step before", phases=(RESUME, "optimizer")
)
def moments_of_the_step_before(probe: Probe) -> Iterator[None]:
    save = honest("rlcore.trainers.local:LocalTrainer.save")
    step = honest("rlcore.trainers.local:LocalTrainer.optimizer_step")
    before: dict[int, dict[str, Tensor]] = {}

    def remembered(trainer: Any, **given: Any) -> float:
        before[id(trainer)] = {name: value.clone() for name, value in save(trainer).optimizer.items()}
        return float(step(trainer, **given))

    def older(trainer: Any) -> Any:
        found = save(trainer)
        probe.reached()
        return found._replace(optimizer=before.get(id(trainer)) or found.optimizer)

    with (
        replaced("rlcore.trainers.local:LocalTrainer.optimizer_step", remembered),
        replaced("rlcore.trainers.local:LocalTrainer.save", older),
    ):
        yield


@fault(
    "minibatches drawn by a generator",
    "the order of minibatches counts from the resume on",
    phases=(RESUME, "forward"),
    setting="updates",
)
def minibatches_counted_anew(probe: Probe) -> Iterator[None]:
    permutation, resume = honest("rlcore.data.minibatches:permutation"), honest(LOAD)
    first = [0]

    def remembered(state: Any, run: Any) -> Any:
        found = resume(state, run)
        first[0] = found.step
        return found

    def anew(num_items: int, seed: int, name: str, step: int, epoch: int) -> list[int]:
        probe.reached(has_effect=first[0] > 0)
        return list(permutation(num_items, seed, name, step - first[0], epoch))

    with replaced(LOAD, remembered), replaced("rlcore.data.minibatches:permutation", anew):
        yield


@fault("ROCm/Megatron-LM #63", "the shards of gate and up are joined in another order", phases=(RESUME,))
def shards_joined_otherwise(probe: Probe) -> Iterator[None]:
    load = honest("rlcore.checkpoints.resume:load_decoder")

    def joined(*given: Any, **others: Any) -> Any:
        decoder = load(*given, **others)
        probe.reached()
        with torch.no_grad():
            for name, value in decoder.named_parameters():
                if name.endswith("gate_up"):
                    parts = value.chunk(4)
                    value.copy_(torch.cat([parts[0], parts[2], parts[1], parts[3]]))
        return decoder

    with replaced("rlcore.checkpoints.resume:load_decoder", joined):
        yield


@fault("a converter's defaults", "a checkpoint names another base of rotations", phases=(RESUME,))
def another_base_of_rotations(probe: Probe) -> Iterator[None]:
    written = honest("rlcore.models.checkpoints:written_config")

    def other(config: Any, dtype: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(written(config, dtype)))
        probe.reached()
        for section in (found, found.get("rope_parameters") or {}, found.get("rope_scaling") or {}):
            if "rope_theta" in section:
                section["rope_theta"] = 500_000.0
        return found

    with replaced("rlcore.models.checkpoints:written_config", other):
        yield


@fault("a tokenizer that is saved alone", "a checkpoint's tokenizer exchanges two tokens", phases=(RESUME,))
def another_tokenizer_saved(probe: Probe) -> Iterator[None]:
    save = honest("rlcore.models.tokenizer:CharacterTokenizer.save")

    def exchanged(tokenizer: Any, directory: Any) -> None:
        save(tokenizer, directory)
        probe.reached()
        path = directory / "tokenizer.json"
        text = path.read_text("utf-8")
        path.write_text(text.replace('"1"', '"one"').replace('"2"', '"1"').replace('"one"', '"2"'), "utf-8")

    with replaced("rlcore.models.tokenizer:CharacterTokenizer.save", exchanged):
        yield


FAULTS = (
    reference_averaged,
    reference_in_bfloat16,
    sampled_in_half,
    head_untied_in_the_sampler,
    evaluated_greedily,
    evaluation_of_the_best,
    moments_of_the_step_before,
    minibatches_counted_anew,
    shards_joined_otherwise,
    another_base_of_rotations,
    another_tokenizer_saved,
)
