"""A run has the same bits without its checks and its record; each check finds its own fault."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlcore.train as engine
from harness.bits.tensor_digests import tensor_digests
from rlcore.algorithms.aggregation import Denominators
from rlcore.checks import Checks, check_completions, check_default_dtype, check_drawn, check_heldout, check_passes
from rlcore.config import RunConfig
from rlcore.data.batch import Batch
from rlcore.data.tasks import Task
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.entrypoint import train
from rlcore.errors import LevelError, RlcoreError, StepError
from rlcore.log import NullRecorder, Record
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.samplers.drawing import GumbelNoise, states
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.train import Minibatch, TrainState, Update
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason
from tests.rlcore.training.recorded import Digests, config, recorded
from tests.support.samplers import TOKENIZER

SHORT = {"num_steps": 3, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}


def state_digests(of: RunConfig, directory: Path, recorder: Any) -> dict[str, str]:
    """Weights and optimizer state of all models at the end of a run."""
    state = train(of, level="invariant", directory=directory, recorder=recorder)
    return {
        f"{model.name} {name}": digest
        for model in state.models
        for name, digest in tensor_digests(model.state()).items()
    }


def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in ("before", "after"):
        monkeypatch.setattr(Checks, moment, lambda self, step: None)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(
            config(algorithm={"name": "grpo", "kl_coef": 0.02}, training={**SHORT, "num_minibatches": 2}),
            id="grpo",
            marks=pytest.mark.full,
        ),
        pytest.param(
            config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05, "kl_target": 0.1}, training=SHORT), id="ppo"
        ),
    ],
)
def test_a_run_without_checks_and_records_has_the_same_bits(
    of: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Digests()
    watched = state_digests(of, tmp_path / "watched", recorder)
    assert recorder.curve.keys() == {0, 1, 2}
    without_checks(monkeypatch)
    for method in ("__call__", "all"):
        monkeypatch.setattr(Record, method, lambda self, *given: None)
    unheard = Digests()
    assert state_digests(of, tmp_path / "alone", unheard) == watched
    assert not unheard.leaves, "nothing was recorded"


def test_norms_rates_and_the_first_evaluation_are_recorded(tmp_path: Path) -> None:
    leaves = recorded(config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05}, training=SHORT), tmp_path).leaves
    for step, trainer in product(range(3), ("policy", "critic")):
        assert (step, "backward", f"{trainer}.gradient_norm", 0) in leaves
        assert (step, "optimizer", f"{trainer}.learning_rate", 0) in leaves
    assert [(step, phase, name) for step, phase, name, _ in leaves if name.startswith("evaluation.")] == [
        (0, "rollout", "evaluation.prompt_ids"),
        (0, "rollout", "evaluation.tokens"),
        (0, "reward", "evaluation.rewards"),
    ]


# ------------------------------------------------------------------------------------------------- each finds its fault


def backwards(state: Any, wanted: Any) -> Any:
    return collect(state, wanted)[::-1]


def noise_of_arrival(self: TorchSampler, requests: Sequence[SampleRequest], **given: Any) -> list[Trajectory]:
    """Each completion is drawn with the noise of its place, and says otherwise."""
    drawn = sample(self, [replace(request, key=number) for number, request in enumerate(requests)], **given)
    return [replace(each, request=request) for each, request in zip(drawn, requests, strict=True)]


def moved_reference(state: TrainState, *given: Any) -> None:
    assert state.reference is not None
    with torch.no_grad():
        next(state.reference.model.parameters()).mul_(1.5)


def off_by_a_bit(temperature: float, policy: Decoder, microbatch: Any) -> tuple[Tensor, Tensor]:
    logprobs, entropy = read_tokens(temperature, policy, microbatch)
    return (logprobs * (1 + 2**-20) if policy.embedding.requires_grad else logprobs), entropy


def off_in_the_reference(temperature: float, policy: Decoder, microbatch: Any) -> tuple[Tensor, Tensor]:
    logprobs, entropy = read_tokens(temperature, policy, microbatch)
    return (logprobs if policy.embedding.requires_grad else logprobs * (1 + 2**-20)), entropy


def written_meanwhile(state: TrainState, batch: Batch, samples: list[int]) -> Minibatch:
    if "advantages" in batch.entries:  # there are none in a warm start
        batch["advantages"].mul_(0.5)
    return divide(state, batch, samples)


def other_columns(state: TrainState, step: int) -> list[Prompt]:
    first, *others = prompts_of(state, step)
    return [replace(first, columns=others[0].columns), *others]


def twice_the_first(num_items: int, *given: Any) -> list[int]:
    return [0, *range(num_items - 1)]


def less_precise(state: Any, directory: Path, step: int) -> None:
    """From the first step to the last, whose end is checked by the level itself."""
    torch.set_float32_matmul_precision("medium" if step < SHORT["num_steps"] else "highest")


collect, divide, read_tokens = engine.collect, engine.divide, engine.read_tokens
prompts_of, sample = TrainState.prompts_of, TorchSampler.sample


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [
        ("rlcore.train.collect", backwards, "completion order: expected sample"),
        ("rlcore.train.TrainState.prompts_of", other_columns, "has the columns of another prompt"),
        ("rlcore.samplers.torch_sampler.TorchSampler.sample", noise_of_arrival, "its key and position draw"),
        ("rlcore.train.save_checkpoint", moved_reference, "reference policy were"),
        ("rlcore.train.permutation", twice_the_first, "is in an epoch"),
        ("rlcore.train.divide", written_meanwhile, "advantages of the batch were written"),
        ("rlcore.train.read_tokens", off_by_a_bit, "the trainer's log-probability"),
        ("rlcore.train.read_tokens", off_in_the_reference, "the reference's log-probability"),
        ("rlcore.train.save_checkpoint", less_precise, "'medium' precision"),
    ],
)
def test_a_fault_is_found_by_its_check_and_by_nothing_else(
    name: str, fault: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = config(
        algorithm={"name": "grpo", "kl_coef": 0.02},
        training={**SHORT, "num_minibatches": 2},
        output={"checkpoint_every": 1},
    )
    monkeypatch.setattr(name, fault)
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(RlcoreError, match=said):
            train(of, level="invariant", directory=tmp_path / "checked", recorder=NullRecorder())
        torch.set_float32_matmul_precision(before)
        without_checks(monkeypatch)
        train(of, level="invariant", directory=tmp_path / "unchecked", recorder=NullRecorder())
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_task_whose_heldout_prompts_are_trained_on_is_refused() -> None:
    prompts = [Prompt(str(number), text, (3,)) for number, text in enumerate("abca")]
    check_heldout(Task("", tuple(prompts[:2]), (prompts[2],), ()))
    with pytest.raises(StepError, match="1 of 2 evaluated prompts are trained on, the first 'a'"):
        check_heldout(Task("", tuple(prompts[:2]), tuple(prompts[2:]), ()))


def test_a_default_type_that_was_changed_is_named() -> None:
    check_default_dtype(torch.float32)
    with pytest.raises(LevelError, match="default type is torch"):
        check_default_dtype(torch.float64)


def test_an_update_has_read_all_that_its_losses_are_divided_by() -> None:
    part = MicrobatchLoss(torch.tensor(0.0), {}, torch.tensor([[True, True, False]]))
    check_passes(Update("policy", 1.0, 0.1, (part, part), Denominators(4, 2)))
    for denominators in (Denominators(5, 2), Denominators(4, 3)):
        with pytest.raises(StepError, match="an update of the policy has read 2 samples and 4 tokens"):
            check_passes(Update("policy", 1.0, 0.1, (part, part), denominators))


EOS, STOP = TOKENIZER.eos_id, 3


@pytest.mark.parametrize(
    ("tokens", "reason", "text", "said"),
    [
        ([4, 5, EOS], StopReason.EOS, None, ""),
        ([4, STOP], StopReason.STOP_ID, None, ""),
        ([4, 6], StopReason.STOP_STRING, None, ""),
        ([4, 5, 5, 5], StopReason.LENGTH, None, ""),
        ([4, EOS, 5], StopReason.LENGTH, None, "continues after token 1, which ends it"),
        ([4, 5], StopReason.EOS, None, "has 2 tokens of at most 4, the last 5, and ended by eos"),
        ([4, 5], StopReason.STOP_STRING, None, "ended by stop_string"),
        ([4, 5], StopReason.LENGTH, None, "ended by length"),
        ([4, 5, 5, 6], StopReason.LENGTH, None, "ended by length"),
        ([4, 5, 5, 5, EOS], StopReason.EOS, None, "has 5 tokens of at most 4"),
        ([4, 5, EOS], StopReason.EOS, "", "says '', where its tokens say"),
    ],
)
def test_a_turn_ends_once_for_the_reason_that_it_gives(
    tokens: list[int], reason: StopReason, text: str | None, said: str
) -> None:
    params = SamplingParams(4, stop_ids=(STOP,), stop_strings=(TOKENIZER.decode([6]),))
    request = SampleRequest(Prompt("p", "ab", (4, 5)), 0, 99, params)
    facts: dict[str, Any] = {"stop_reason": reason, "policy_version": 0, "weights_digest": ""}
    text = TOKENIZER.decode(tokens) if text is None else text
    found = [build_single_turn(request, tokens, [-1.0] * len(tokens), text=text, **facts)]
    if not said:
        check_completions([request], found, None, TOKENIZER)
        return
    with pytest.raises(StepError, match=re.escape(said)):
        check_completions([request], found, None, TOKENIZER)


def test_which_of_equal_logits_a_filter_keeps_is_checked() -> None:
    """All logits of a decoder of zeros are equal: of 12 tokens the first six are half of the probability."""
    decoder = Decoder(DecoderConfig("qwen3", 12, 16, 1, 1, 1, 16, 16, max_length=64)).bfloat16()
    of = config(sampling={"max_tokens": 16, "top_p": 0.5})
    request = SampleRequest(Prompt("p", "ab", (1, 2)), 0, 99, SamplingParams(16, top_p=0.5))
    noise = GumbelNoise.of(12, torch.device("cpu"))(states(torch.full((12,), 99), torch.arange(12)))

    def completion(kept: slice) -> Trajectory:
        tokens = (noise[:, kept].argmax(-1) + kept.start).tolist()
        facts: dict[str, Any] = {"stop_reason": StopReason.LENGTH, "policy_version": 0, "weights_digest": ""}
        return build_single_turn(request, tokens, [-math.log(12)] * 12, text="", **facts)

    check_drawn(decoder, completion(slice(0, 6)), of)
    with pytest.raises(LevelError, match="token 0 of sample 0 of prompt p is "):
        check_drawn(decoder, completion(slice(6, 12)), of)
