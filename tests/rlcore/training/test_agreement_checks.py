"""What a run says in two places is compared: what agrees passes, and each disagreement is found with its phase."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.checks.agreement_checks import (
    check_curve,
    check_default_dtype,
    check_items,
    check_prompts,
    check_stops,
    check_temperature,
    check_totals,
    check_warmup,
    loss_and_entropy,
    weights_of,
)
from rlcore.config import read_config
from rlcore.environments.branches import Item, branch
from rlcore.environments.trajectory import Trajectory
from rlcore.errors import LevelError, StepError
from rlcore.rewards.score import Scores
from rlcore.trainers.base import MicrobatchLoss
from rlcore.types import BeamParams, SamplingParams, StopReason
from tests.rlcore.rewards.completions import completion
from tests.rlcore.training.small_rollouts import TRAJECTORIES, WANTED

PROMPTS = {request.prompt.id: request.prompt for request in WANTED}
TASK = {"name": "sorting", "rewards": ["a:b", "a:c"], "reward_weights": [1.0, 0.5]}


def test_a_request_has_the_prompt_of_the_task() -> None:
    check_prompts(WANTED, PROMPTS)
    prompt = WANTED[0].prompt
    for changed, said, phases in (
        (replace(prompt, tokens=prompt.tokens[1:]), "is read as", ("rollout",)),
        (replace(prompt, columns={"answer": "another"}), "columns of another prompt", ("reward",)),
        (replace(prompt, id="unknown"), "is not one of the task", ("rollout",)),
    ):
        with pytest.raises(StepError, match=said) as raised:
            check_prompts([replace(WANTED[0], prompt=changed)], PROMPTS)
        assert raised.value.phases == phases


@pytest.mark.parametrize(
    ("text", "reason", "is_right"),
    [
        ("oh hi", StopReason.STOP_STRING, True),
        ("oh", StopReason.EOS, True),
        ("oh", StopReason.LENGTH, True),
        ("oh hi", StopReason.STOP_ID, True),
        ("oh", StopReason.STOP_STRING, False),
        ("oh hi", StopReason.LENGTH, False),
        ("hi oh", StopReason.EOS, False),
    ],
)
def test_a_turn_ends_with_its_first_stop_string(text: str, reason: StopReason, is_right: bool) -> None:
    asked = replace(WANTED[0], params=SamplingParams(max_tokens=4, stop_strings=("hi",)))
    prompt, turn = TRAJECTORIES[0].turns
    said = replace(TRAJECTORIES[0], request=asked, turns=(prompt, replace(turn, text=text, stop_reason=reason)))
    if is_right:
        check_stops([said])
        return
    with pytest.raises(StepError, match="a turn ends with its first stop string"):
        check_stops([said])


REWARDS = st.one_of(st.none(), st.floats(-10, 10))


@given(st.lists(st.tuples(REWARDS, REWARDS), min_size=4, max_size=4), st.integers(0, 3))
def test_a_total_is_the_weighted_sum_of_what_functions_gave(pairs: list[tuple[float | None, ...]], at: int) -> None:
    weights = (1.0, 0.5)
    totals = []
    for pair in pairs:
        given_values = [w * v for w, v in zip(weights, pair, strict=True) if v is not None]
        totals.append(math.fsum(given_values) if given_values else None)
    one, other = zip(*pairs, strict=True)
    scores = Scores(totals, {"b": list(one), "c": list(other)})
    check_totals(scores, TRAJECTORIES[:4], weights)
    wrong = [*totals]
    wrong[at] = 99.0 if totals[at] is None else None
    with pytest.raises(StepError, match=f"sample {at} has reward"):
        check_totals(replace(scores, rewards=wrong), TRAJECTORIES[:4], weights)


def rollout_of(*scores: float) -> list[Trajectory]:
    """A reasoning, and items with these log-probabilities."""
    reasoning, beams = completion("reasoning"), BeamParams(3, 4, forced=(1,))
    items = [Item((120 + at,), (score,), chr(120 + at), StopReason.LENGTH) for at, score in enumerate(scores)]
    return [reasoning, *(branch(reasoning, each, beams, forced_text="|") for each in items)]


def test_items_come_by_falling_log_probability() -> None:
    check_items([*rollout_of(-0.5, -1.0, -1.0), *TRAJECTORIES])
    with pytest.raises(StepError, match="falling ones"):
        check_items(rollout_of(-1.0, -0.5))


def test_a_reasoning_is_worth_the_mean_of_its_items() -> None:
    column: list[float | None] = [0.25, 0.5, 0.0]
    right = Scores([0.25, 0.5, 0.0], {"b": column})
    check_totals(right, rollout_of(-0.5, -1.0), (1.0,))
    with pytest.raises(StepError, match=r"sample 0 has reward 0\.5"):
        check_totals(replace(right, rewards=[0.5, 0.5, 0.0]), rollout_of(-0.5, -1.0), (1.0,))


def test_weights_are_those_of_the_configuration() -> None:
    algorithm = {"name": "grpo"}
    assert weights_of(read_config({"task": TASK, "algorithm": algorithm}), 2) == (1.0, 0.5)
    with_model = {**TASK, "reward_model": {"weight": 0.25}}
    assert weights_of(read_config({"task": with_model, "algorithm": algorithm}), 3) == (1.0, 0.5, 0.25)
    assert weights_of(read_config({"task": {"name": "sorting"}, "algorithm": algorithm}), 1) == (1.0,)


def test_the_policy_waits_for_the_critics_warmup() -> None:
    config = read_config({"task": {"name": "sorting"}, "algorithm": {"name": "ppo", "num_critic_warmup_steps": 2}})
    check_warmup(config, "critic", 0)
    check_warmup(config, "policy", 2)
    with pytest.raises(StepError, match="the policy learns in step 1"):
        check_warmup(config, "policy", 1)


def part(loss: float, entropies: list[float], counts: list[bool]) -> MicrobatchLoss:
    return MicrobatchLoss(torch.tensor(loss), {"entropy": torch.tensor([entropies])}, torch.tensor([counts]))


def test_a_curve_is_that_of_the_passes() -> None:
    losses = [part(0.25, [1.0, 2.0, 9.0], [True, True, False]), part(0.5, [6.0, 9.0, 9.0], [True, False, False])]
    updates = [loss_and_entropy(losses)]
    check_curve({"loss": 0.75, "entropy": 3.0}, updates)
    check_curve({"loss": 0.375, "entropy": 3.0}, [*updates, (0.0, 3.0)])
    check_curve({}, updates)
    check_curve({"loss": 5.0}, [])
    for curve, name in (({"loss": 0.25}, "loss"), ({"entropy": (1.5 + 6.0) / 2}, "entropy")):
        with pytest.raises(StepError, match=f"the {name} of the curve is"):
            check_curve(curve, updates)


def test_an_evaluation_draws_as_training_does() -> None:
    temperature = TRAJECTORIES[0].request.params.temperature
    check_temperature(TRAJECTORIES, temperature)
    with pytest.raises(StepError, match=r"legal: 0\.5|0\.5, sampling\.temperature"):
        check_temperature(TRAJECTORIES, 0.5)


def test_nobody_changes_the_default_type() -> None:
    before = torch.get_default_dtype()
    check_default_dtype(before)
    try:
        torch.set_default_dtype(torch.float64)
        with pytest.raises(LevelError, match=r"torch\.float64, and was torch\.float32"):
            check_default_dtype(before)
    finally:
        torch.set_default_dtype(before)
