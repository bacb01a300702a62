"""What is looked at in every step: what is right passes however it was rounded, and nothing draws or lowers precision.

That each check finds its fault is for the table of observers and for the planted faults of the guards.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.advantages import dr_grpo, gae, grpo, rloo
from rlcore.checks.advantage_checks import check_estimates, check_greedy, check_relative, check_scaled
from rlcore.checks.observers import checks_of_level
from rlcore.checks.rollout_checks import check_undrawn
from rlcore.checks.witnesses import check_drawn, check_gradients
from rlcore.data.batch import Batch
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.determinism import check_level
from rlcore.errors import LevelError, StepError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.observability.events import GreedyScored
from rlcore.observability.observers import Observers
from rlcore.samplers.drawing import GumbelNoise, states
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason
from tests.rlcore.data.completions import completions
from tests.support.traces import SEEDED

near_to_each_other = st.integers(-3, 3).map(lambda steps: 1000.0 + steps * 1e-9)
rewards_of_all_sizes = st.floats(-1e3, 1e3, width=32) | near_to_each_other | st.sampled_from([0.9, 0.3, 1e-30, 0.0])
groups_of_rewards = st.lists(st.tuples(st.integers(0, 3), rewards_of_all_sizes, st.booleans()), min_size=1, max_size=24)


@SEEDED
@given(groups_of_rewards, st.sampled_from([grpo, dr_grpo, rloo]))
def test_right_estimates_pass(samples: list[tuple[int, float, bool]], estimate: Any) -> None:
    groups = torch.tensor([group for group, _, _ in samples])
    rewards = torch.tensor([reward for _, reward, _ in samples], dtype=torch.float64)
    included = torch.tensor([True, *(counts for _, _, counts in samples[1:])])
    found = estimate(rewards, groups, included)
    check_relative(found, rewards, groups, included)
    check_scaled(found, rewards, groups, included, estimate.__name__)


def test_the_rounding_of_a_mean_is_no_fault_and_a_lone_sample_may_have_any_advantage() -> None:
    """Its error is a hundred-thousandth of such advantages: they lie that close together."""
    rewards, groups = torch.tensor([1000.0, 1000.0, 1000.0 + 6e-9], dtype=torch.float64), torch.zeros(3).long()
    advantages = dr_grpo(rewards, groups)
    assert abs(math.fsum(advantages.tolist())) > 1e-6 * float(advantages.abs().max())
    check_relative(advantages, rewards, groups, torch.ones(3, dtype=torch.bool))
    rewards, groups = torch.tensor([1.0, 0.5, 0.25]), torch.tensor([0, 0, 1])
    included = torch.tensor([True, False, True])
    check_relative(torch.tensor([0.7, 0.0, 0.3]), rewards, groups, included)
    with pytest.raises(StepError, match="without a reward"):
        check_relative(torch.tensor([0.7, 0.1, 0.3]), rewards, groups, included)


@SEEDED
@given(st.integers(0, 999), st.sampled_from([0.0, 0.3, 0.95, 1.0]), st.sampled_from([0.0, 0.8, 1.0]))
def test_each_advantage_follows_from_the_next(seed: int, gamma: float, lam: float) -> None:
    lengths, positions = torch.tensor([5, 3, 4, 6]), torch.arange(6)
    mask = (positions >= 2) & (positions < lengths.unsqueeze(1))
    drawing = torch.Generator().manual_seed(seed)
    token_rewards, values = (torch.randn(4, 6, generator=drawing) * mask for _ in range(2))
    included = torch.tensor([True, True, False, True])
    batch = Batch({"loss_mask": mask, "included": included, "lengths": lengths, "values": values})
    found = gae(token_rewards, values, mask, included, gamma=gamma, lam=lam)
    check_estimates(found, token_rewards, batch, gamma=gamma, lam=lam)
    other = (gamma, lam + 0.5) if gamma else (0.5, lam)
    with pytest.raises(StepError, match="advantage: an advantage of sample 0 is "):
        check_estimates(found, token_rewards, batch, gamma=other[0], lam=other[1])


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
    params = SamplingParams(16, top_p=0.5)
    request = SampleRequest(Prompt("p", "ab", (1, 2)), 0, 99, params)
    noise = GumbelNoise.of(12, torch.device("cpu"))(states(torch.full((12,), 99), torch.arange(12)))

    def completion(kept: slice) -> Trajectory:
        tokens = (noise[:, kept].argmax(-1) + kept.start).tolist()
        facts: dict[str, Any] = {"stop_reason": StopReason.LENGTH, "policy_version": 0, "weights_digest": ""}
        return build_single_turn(request, tokens, [-math.log(12)] * 12, text="", **facts)

    check_drawn(decoder, completion(slice(0, 6)), params)
    with pytest.raises(LevelError, match="token 0 of sample 0 of prompt p is "):
        check_drawn(decoder, completion(slice(6, 12)), params)


@pytest.mark.parametrize(("draw", "whose"), [(lambda: torch.rand(1), "torch"), (random.random, "Python")])
def test_nothing_draws_from_a_generator_at_level_invariant(draw: Callable[[], object], whose: str) -> None:
    for level in ("off", "deterministic"):
        with Observers(*checks_of_level(level)).stage("rollout"):
            draw()
    observers = Observers(*checks_of_level("invariant"))
    with observers.stage("rollout"):
        torch.rand(1, generator=torch.Generator())
    with observers.stage("evaluation"):
        draw()
    said = f"rollout: something has drawn from the generator of {whose}"
    with pytest.raises(LevelError, match=said) as raised, observers.stage("rollout"):
        draw()
    assert raised.value.phases == ("rollout",)


def test_draws_on_a_gpu_are_seen_and_a_gpu_that_is_first_used_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    with check_undrawn("rollout"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    said = "rollout: something has drawn from the generator of GPU 1"
    with pytest.raises(LevelError, match=said), check_undrawn("rollout"):
        torch.rand(1, generator=gpus[1])


def test_what_the_process_is_told_of_arithmetic_is_seen_in_the_next_step() -> None:
    with following(Strategy()):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            check_level("invariant")
            torch.set_float32_matmul_precision("medium")
            with pytest.raises(LevelError, match="'medium' precision"):
                check_level("invariant")
            torch.set_float32_matmul_precision("highest")
            if torch.set_flush_denormal(True):
                with pytest.raises(LevelError, match="flushed to zero in this thread"):
                    check_level("invariant")
        finally:
            torch.set_flush_denormal(False)
            torch.use_deterministic_algorithms(before)


def test_the_baseline_of_a_sample_is_the_greedy_reward_of_its_own_prompt() -> None:
    trajectories = completions(["x", "y"])
    greedy = GreedyScored(trajectories, Scores([0.25, 0.5], {}))
    check_greedy(Batch({"greedy_rewards": torch.tensor([0.25, 0.5])}), trajectories, greedy)
    with pytest.raises(StepError, match=r"reward: the baseline of sample 0 of prompt \S+ \S+ is 0\.5"):
        check_greedy(Batch({"greedy_rewards": torch.tensor([0.5, 0.25])}), trajectories, greedy)
