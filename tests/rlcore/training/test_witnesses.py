"""Each fault that repeats itself is seen in the first step that has it, by a value that is computed a second time."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.advantages import dr_grpo, grpo, rloo
from rlcore.batching.batch import Batch
from rlcore.checkpoints.checkpoint import save
from rlcore.checks.advantage_checks import check_scaled
from rlcore.checks.observers import CHECKS
from rlcore.checks.witnesses import check_drawn, check_gradients
from rlcore.config import RunConfig
from rlcore.controllers.evaluation import evaluate
from rlcore.entrypoint import train
from rlcore.environments.trajectory import Trajectory, build_single_turn
from rlcore.errors import CheckpointError, LevelError, RlcoreError, StepError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.hub_config import written_config
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.observability.events import BackwardBegins, Event, GreedyScored, ModelsBuilt, StepEnds, WeightsSynced
from rlcore.observability.observers import Observer
from rlcore.recipes.policy_pass import logprobs, read_in_bulk
from rlcore.samplers.drawing import Plan, draw
from rlcore.samplers.gumbel import GumbelNoise, states
from rlcore.trace import NullRecorder
from rlcore.trainers.local import LocalTrainer, global_norm, take_gradient
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason
from tests.rlcore.training.recorded import config, recorded

SHORT = {"num_steps": 3, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}
WITH_REFERENCE = config(algorithm={"name": "grpo", "kl_coef": 0.02}, training=SHORT)
PLAIN = config(training=SHORT)
PPO = config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05}, training=SHORT)
Patch = tuple[str, Any]


# ------------------------------------------------------------------------------------------------------------- faults


def coarse(bits: Tensor) -> Tensor:
    """Uniform numbers of 24 bits."""
    return (((bits >> 40) & ((1 << 24) - 1)).double() + 0.5) / (1 << 24)


def by_place(*, seed: int, step: int, prompt_id: str, sample_index: int) -> int:
    return next(PLACES)


PLACES = count(1)


def cooler(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
    """Draw at temperature 0.2, and report log-probabilities at 1."""
    tokens, _ = draw(logits / 0.2, plan, noise, states)
    return tokens, torch.log_softmax(logits.float(), -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def noise_of_rows(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
    """Give rows the noise of their neighbours."""
    return draw(logits, plan, noise, states.roll(1))


def not_tempered(state: Any, reader: Any, batch: Batch) -> Tensor:
    return read_in_bulk(state, reader, batch, lambda policy, microbatch: logprobs(policy, microbatch, temperature=1.25))


def doubled(parameter: Tensor) -> Tensor:
    """Count the gradient of an embedding twice."""
    is_embedding = parameter.shape[0] > 64 or (parameter.dim() == 2 and parameter.shape[1] == 32 == parameter.shape[0])
    gradient = take_gradient(parameter)
    return gradient * 2 if is_embedding else gradient


def without_the_last(gradients: Any) -> float:
    return 0.75 * global_norm(gradients)


def one_for_all(section: Any, peak: float, step: int, num_steps: int) -> float:
    return float(section.learning_rate)


def reward_instead(token_rewards: Tensor, old: Tensor, ref: Tensor, mask: Tensor, *, kl_coef: float) -> Tensor:
    """Put the reward of a completion in place of its last token's KL."""
    penalty = torch.where(mask, kl_coef * (old - ref + 0.5), 0.0)
    return torch.where(token_rewards != 0, token_rewards, -penalty)


def on_training_prompts(state: Any, prompts: Sequence[Any], *, step: int) -> Any:
    return evaluate(state, state.task.train[: len(prompts)], step=step)


@pytest.mark.full
@pytest.mark.parametrize(
    ("of", "patch", "said"),
    [
        (PLAIN, ("rlcore.samplers.gumbel.uniforms", coarse), "rollout: the noise of key 24301, position 310"),
        (
            PLAIN,
            ("rlcore.recipes.rollout.completion_key", by_place),
            "rollout: sample 0 of prompt .* has key .* in step 0",
        ),
        (PLAIN, ("rlcore.samplers.batching.draw", cooler), "step 0: rollout: token .* draw .* at temperature 1"),
        (PLAIN, ("rlcore.samplers.batching.draw", noise_of_rows), "step 0: rollout: token .* of sample . of prompt"),
        (WITH_REFERENCE, ("rlcore.recipes.policy_pass.logprobs_in_bulk", not_tempered), "step 0: reference or rollout"),
        (PLAIN, ("rlcore.trainers.local.take_gradient", doubled), "backward: the gradient of parameter"),
        (
            PLAIN,
            ("rlcore.trainers.local.global_norm", without_the_last),
            "optimizer: the norm of gradients of the policy after their clip is 1.33",
        ),
        (PPO, ("rlcore.recipes.update.learning_rate", one_for_all), "optimizer: the critic learns at rate 0.0003"),
        (PPO, ("rlcore.recipes.ppo.in_rewards", reward_instead), "reward: the reward of sample"),
        (
            PLAIN,
            ("rlcore.controllers.synchronous.evaluate", on_training_prompts),
            "4 of 4 evaluated prompts are trained",
        ),
    ],
    ids=lambda given: given[1].__name__ if isinstance(given, tuple) else "",
)
def test_a_fault_ends_the_run_where_it_begins(
    of: RunConfig, patch: Patch, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*patch)
    with pytest.raises(RlcoreError, match=said):
        train(of, level="invariant", directory=tmp_path, recorder=NullRecorder())


def test_gradients_are_compared_where_they_are_finite() -> None:
    """NaN of the loss itself is reported with the norm; one of the sum alone is a fault of the sum."""
    nan, one = torch.full((2,), math.nan), torch.ones(2)
    check_gradients([nan], [nan])
    check_gradients([one], [one])
    for found, expected in ((nan, one), (1.01 * one, one), (one, nan)):
        with pytest.raises(StepError, match="the gradient of parameter 0"):
            check_gradients([found], [expected])


def test_which_of_equal_logits_a_filter_keeps_is_checked() -> None:
    """All logits of a decoder of zeros are equal: of 12 tokens the first six are half of the probability."""
    decoder = Decoder(DecoderConfig("qwen3", 12, 16, 1, 1, 1, 16, 16, max_length=64)).bfloat16()
    params, num_tokens = SamplingParams(16, top_p=0.5), 12
    request = SampleRequest(Prompt("p", "ab", (1, 2)), 0, 99, params)
    noise = GumbelNoise.of(12, torch.device("cpu"))(states(torch.full((num_tokens,), 99), torch.arange(num_tokens)))

    def completion(kept: slice) -> Trajectory:
        tokens = (noise[:, kept].argmax(-1) + kept.start).tolist()
        return build_single_turn(
            request,
            tokens,
            [-math.log(12)] * num_tokens,
            text="",
            stop_reason=StopReason.LENGTH,
            policy_version=0,
            weights_digest="",
        )

    check_drawn(decoder, completion(slice(0, 6)), params)
    with pytest.raises(LevelError, match="token 0 of sample 0 of prompt p is "):
        check_drawn(decoder, completion(slice(6, 12)), params)


class Meddler(Observer):
    """Does something to the run at one of its events of a kind."""

    def __init__(self, kind: type, number: int, do: Callable[[Any], None]) -> None:
        self._kind, self._left, self._do = kind, number, do

    def observe(self, event: Event) -> None:
        if isinstance(event, self._kind):
            self._left -= 1
            if self._left == 0:
                self._do(event)


def meddled(
    of: RunConfig, meddler: Observer, directory: Path, monkeypatch: pytest.MonkeyPatch, *, without: Sequence[type] = ()
) -> None:
    """Run with an observer that meddles before the checks look."""
    checks = tuple(build for build in CHECKS["invariant"] if build not in without)
    monkeypatch.setattr("rlcore.checks.observers.CHECKS", {**CHECKS, "invariant": (lambda: meddler, *checks)})
    train(of, level="invariant", directory=directory, recorder=NullRecorder())


def test_a_reference_that_takes_over_memory_is_seen_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: dict[str, Any] = {}

    def share(_: StepEnds) -> None:
        for frozen, parameter in zip(models["reference"].parameters(), models["policy"].parameters(), strict=True):
            frozen.data = parameter.data

    class Sharing(Meddler):
        def observe(self, event: Event) -> None:
            if isinstance(event, ModelsBuilt):
                models.update(event.models)
            super().observe(event)

    with pytest.raises(StepError, match="reference: the reference has weights in the memory of the policy"):
        meddled(WITH_REFERENCE, Sharing(StepEnds, 2, share), tmp_path, monkeypatch)


def test_a_policy_that_is_not_what_was_sent_is_seen_after_the_last_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(event: WeightsSynced) -> None:
        with torch.no_grad():
            event.policy.decoder().embedding[0, 0] += 1.0

    with pytest.raises(StepError, match="sync or optimizer: the policy has weights"):
        meddled(PLAIN, Meddler(WeightsSynced, SHORT["num_steps"], write), tmp_path, monkeypatch)


def test_threads_that_change_within_a_phase_or_between_steps_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(_: Event) -> None:
        torch.set_num_threads(5)

    before = torch.get_num_threads()
    try:
        with pytest.raises(LevelError, match="step 1: forward or loss or backward: torch computes with 5 threads"):
            meddled(PLAIN, Meddler(BackwardBegins, NUM_WARM + 6, more), tmp_path / "within", monkeypatch)
        torch.set_num_threads(before)
        with pytest.raises(LevelError, match="step 2: torch computes with 5 threads") as caught:
            meddled(PLAIN, Meddler(StepEnds, 2, more), tmp_path / "between", monkeypatch)
        assert "--step 2 --trace-ops; then leave torch.set_num_threads alone" in caught.value.remedy
    finally:
        torch.set_num_threads(before)


NUM_WARM = 12
"""Backward passes of the warm start: two a step."""


def test_the_norm_that_is_reported_is_that_of_all_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = LocalTrainer.optimizer_step

    def clipped(self: LocalTrainer, *, learning_rate: float, max_norm: float | None) -> float:
        return min(0.01, step(self, learning_rate=learning_rate, max_norm=max_norm))

    monkeypatch.setattr(LocalTrainer, "optimizer_step", clipped)
    with pytest.raises(StepError, match=r"norm of gradients of the policy, as reported, is 0\.01"):
        train(PLAIN, level="invariant", directory=tmp_path, recorder=NullRecorder())


def test_advantages_have_the_scale_of_their_group() -> None:
    rewards = torch.tensor([0.0, 1.0, 0.0, 10.0], dtype=torch.float64)
    groups, included = torch.tensor([0, 0, 1, 1]), torch.ones(4, dtype=torch.bool)
    for estimator, compute in (("grpo", grpo), ("dr_grpo", dr_grpo), ("rloo", rloo)):
        found = compute(rewards, groups, included)
        check_scaled(found, rewards, groups, included, estimator)
        with pytest.raises(StepError, match=r"advantages of group .* deviation") as caught:
            check_scaled(found * rewards.std(), rewards, groups, included, estimator)
        assert f"by the estimator {estimator}" in caught.value.legal


def test_greedy_rewards_stand_under_their_own_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def to_others(ids: Iterable[str], given: list[float], **_: bool) -> Iterator[tuple[str, float]]:
        return zip(ids, given[1:] + given[:1], strict=False)

    def rotated(event: GreedyScored) -> None:
        rewards = event.scores.rewards
        rewards[:] = [0.25 * number for number in range(len(rewards))]
        monkeypatch.setattr("rlcore.recipes.greedy_baseline.zip", to_others)

    monkeypatch.setattr("rlcore.recipes.greedy_baseline.zip", zip, raising=False)
    of = config(algorithm={"name": "grpo", "advantage": "remax"}, training=SHORT)
    with pytest.raises(StepError, match=r"reward: the baseline of sample 0 of prompt .* is 0\.25"):
        meddled(of, Meddler(GreedyScored, 1, rotated), tmp_path, monkeypatch)


def test_a_checkpoint_has_every_digit_of_the_live_coefficient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(directory: Path, step: int, tensors: Any, values: dict[str, Any], **others: Any) -> Path:
        return save(directory, step, tensors, {**values, "kl_coef": float(f"{values['kl_coef']:.6g}")}, **others)

    monkeypatch.setattr("rlcore.checkpoints.resume.save", rounded)
    with pytest.raises(CheckpointError, match=r"has kl_coef 0\.0512346") as caught:
        train(
            config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05123456789}, training={**SHORT, "num_steps": 1}),
            level="off",
            directory=tmp_path,
            recorder=NullRecorder(),
        )
    assert caught.value.legal == "0.05123456789, as the run has it"


def test_a_checkpoint_describes_the_model_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def converted(model: Any, dtype: str) -> dict[str, Any]:
        return {**written_config(model, dtype), "rms_norm_eps": 1e-3}

    monkeypatch.setattr("rlcore.models.checkpoints.written_config", converted)
    with pytest.raises(CheckpointError, match=r"has model DecoderConfig\(.*norm_eps=0\.001") as caught:
        train(config("grpo", training=SHORT), level="off", directory=tmp_path, recorder=NullRecorder())
    assert "norm_eps=1e-06" in caught.value.legal


def test_a_checkpoint_has_the_tokenizer_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(tokenizer: CharacterTokenizer, directory: Path) -> None:
        whole(tokenizer, directory)
        file = directory / "tokenizer.json"
        text = file.read_text("utf-8")
        file.write_text(text.replace('"a"', '"?"').replace('"b"', '"a"').replace('"?"', '"b"'), "utf-8")

    whole = CharacterTokenizer.save
    monkeypatch.setattr(CharacterTokenizer, "save", exchanged)
    with pytest.raises(CheckpointError, match="has another tokenizer than the run"):
        train(config("grpo", training=SHORT), level="off", directory=tmp_path, recorder=NullRecorder())


def test_norms_rates_and_the_first_evaluation_are_recorded(tmp_path: Path) -> None:
    leaves = recorded(PPO, tmp_path).leaves
    for step, trainer in product(range(3), ("policy", "critic")):
        assert (step, "backward", f"{trainer}.gradient_norm", 0) in leaves
        assert (step, "optimizer", f"{trainer}.learning_rate", 0) in leaves
    evaluated = [(step, phase, name) for step, phase, name, _ in leaves if name.startswith("evaluation.")]
    assert evaluated == [
        (0, "rollout", "evaluation.prompt_ids"),
        (0, "rollout", "evaluation.tokens"),
        (0, "reward", "evaluation.rewards"),
    ]
