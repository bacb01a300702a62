"""Metrics of a step do not depend on an order by a bit."""

import math
import random
import statistics
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.algorithms.aggregation import Denominators
from rlcore.data.batch import Batch
from rlcore.data.scoring import Scores
from rlcore.log import mean
from rlcore.train import Step, Update, metrics_of_step
from rlcore.trainers.gradients import MicrobatchLoss
from tests.rlcore.data.completions import completions

PROPERTY = settings(max_examples=2 * settings().max_examples)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def bits(value: float) -> object:
    """All that can be seen of a number; one NaN is like another."""
    return struct.pack("d", math.nan if math.isnan(value) else value)


@PROPERTY
@given(st.lists(FLOATS, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_values_changes_no_bit(values: list[float], draw: random.Random) -> None:
    assert bits(mean(values)) == bits(mean(draw.sample(values, len(values))))


def test_means_at_the_edges() -> None:
    assert [mean([1, 2]), mean([True, False]), mean([1e16, 1.0, -1e16, 1.0])] == [1.5, 0.5, 0.5]
    assert mean([1e308, 1e308, -1e308]) == pytest.approx(1e308 / 3)
    assert mean([1e308] * 3) == pytest.approx(1e308)
    assert mean([math.inf, 1.0]) == math.inf
    assert math.isnan(mean([math.inf, -math.inf])) and math.isnan(mean([math.nan, 1.0]))


def step_of(
    lengths: list[int], rewards: list[float | None], by_function: dict[str, list[float | None]] | None = None
) -> Step:
    """A step whose completions have these lengths and rewards, and which has not learned."""
    step = Step(0)
    step.rollouts = completions(["x"] * len(lengths))
    step.requests = [each.request for each in step.rollouts]
    step.scores = Scores(rewards, by_function or {})
    step.batch = Batch(
        {
            "loss_mask": torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1),
            "rewards": torch.tensor([math.nan if each is None else each for each in rewards], dtype=torch.float64),
            "included": torch.tensor(step.scores.included),
        }
    )
    return step


def test_completions_by_hand() -> None:
    found = metrics_of_step(step_of([2, 4, 6], [1.0, None, 0.0], {"exact": [1.0, None, 0.0], "f": [None, None, None]}))
    assert math.isnan(found.pop("rewards/f"))
    assert found == {
        "completion_length": 4.0,
        "completion_length_min": 2,
        "completion_length_max": 6,
        "truncated": 0.0,
        "unjudged": 1,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "rewards/exact": 0.5,
        "mismatch/num_tokens": 0.0,
        "mismatch/max_nats": 0.0,
    }


def test_equal_rewards_have_no_spread() -> None:
    """By the plain formula 0.9 eight times has 1e-16 of it."""
    for reward in (0.9, 5.3, 0.1):
        assert metrics_of_step(step_of([1] * 7, [reward] * 7))["reward_std"] == 0.0
    assert metrics_of_step(step_of([1] * 3, [1.0, 2.0, 4.0]))["reward_std"] == statistics.pstdev([1.0, 2.0, 4.0])


def test_updates_of_one_model_are_averaged_over_all_tokens_of_their_passes() -> None:
    """Two updates of the policy, the first in two passes of one and three tokens; one of the critic."""
    step = step_of([2, 2], [1.0, 0.0])

    def part(loss: float, entropy: list[float], mask: list[bool]) -> MicrobatchLoss:
        observed = {"logprobs": torch.zeros(1, len(mask)), "entropy": torch.tensor([entropy])}
        return MicrobatchLoss(torch.tensor(loss), observed, torch.tensor([mask]))

    first = (part(0.5, [4.0, 9.0], [True, False]), part(0.25, [1.0, 2.0, 1.0], [True, True, True]))
    second = (part(0.25, [6.0], [True]),)
    counts = Denominators(4, 2)
    step.updates = [
        Update("critic", 0.0, 0.5, second, counts),
        Update("policy", 3.0, 0.1, first, counts),
        Update("policy", 1.0, 0.1, second, counts),
    ]
    found = metrics_of_step(step)
    assert {name: found[name] for name in ("loss", "grad_norm", "entropy", "critic_loss", "critic_learning_rate")} == {
        "loss": 0.5,
        "grad_norm": 2.0,
        "entropy": 4.0,
        "critic_loss": 0.25,
        "critic_learning_rate": 0.5,
    }
    assert "logprobs" not in found and found["learning_rate"] == pytest.approx(0.1)
