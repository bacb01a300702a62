"""What holds of every step is looked at in every step: each check passes what is right, and finds what is not."""

import importlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.advantages import dr_grpo, gae, grpo, rloo, whiten
from rlcore.batching.batch import Batch
from rlcore.checks.advantage_checks import check_estimates, check_relative, check_token_rewards, check_whitened
from rlcore.checks.observers import checks_of_level
from rlcore.checks.rollout_checks import check_sent, check_undrawn
from rlcore.determinism import check_level
from rlcore.errors import CheckpointError, LevelError, StepError
from rlcore.numerics.level import following
from rlcore.numerics.padding import Padding
from rlcore.observability.observers import Observers
from rlcore.weights.digests import weights_digest
from rlcore.weights.source import LiveWeights
from tests.rlcore.training.recorded import Lost, config, recorded
from tests.rlcore.training.small_rollouts import (
    RECEIPT,
    batch_of,
)
from tests.support.run_configs import with_section
from tests.support.traces import SEEDED

# ---------------------------------------------------------------------------------------------------------- advantages

near_to_each_other = st.integers(-3, 3).map(lambda steps: 1000.0 + steps * 1e-9)
rewards_of_all_sizes = st.floats(-1e3, 1e3, width=32) | near_to_each_other | st.sampled_from([0.9, 0.3, 1e-30, 0.0])
groups_of_rewards = st.lists(st.tuples(st.integers(0, 3), rewards_of_all_sizes, st.booleans()), min_size=1, max_size=24)


@SEEDED
@given(groups_of_rewards, st.sampled_from([grpo, dr_grpo, rloo]))
def test_right_estimates_pass(samples: list[tuple[int, float, bool]], estimate: Any) -> None:
    groups = torch.tensor([group for group, _, _ in samples])
    rewards = torch.tensor([reward for _, reward, _ in samples], dtype=torch.float64)
    included = torch.tensor([True, *(counts for _, _, counts in samples[1:])])
    check_relative(estimate(rewards, groups, included), rewards, groups, included)


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        ([1.0, -1.0, 0.5, 0.5], "advantages of group 1 are up to 0.5, with rewards that are all 0.25"),
        ([1.0, -0.9, 0.0, 0.0], "advantages of group 0 add up to"),
        ([-1.0, 1.0, 0.0, 0.0], "advantages of group 0 do not rise with its rewards"),
        ([float("nan"), 1.0, 0.0, 0.0], "advantages of group 0 are not finite"),
    ],
)
def test_wrong_estimates_do_not(advantages: list[float], said: str) -> None:
    rewards, groups = torch.tensor([1.0, 0.5, 0.25, 0.25], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    everybody = torch.ones(4, dtype=torch.bool)
    check_relative(torch.tensor([1.0, -1.0, 0.0, 0.0]), rewards, groups, everybody)
    with pytest.raises(StepError, match=said):
        check_relative(torch.tensor(advantages, dtype=torch.float64), rewards, groups, everybody)


def test_the_rounding_of_a_mean_is_no_fault() -> None:
    """Its error is a hundred-thousandth of such advantages: they lie that close together."""
    rewards, groups = torch.tensor([1000.0, 1000.0, 1000.0 + 6e-9], dtype=torch.float64), torch.zeros(3).long()
    advantages = dr_grpo(rewards, groups)
    assert abs(math.fsum(advantages.tolist())) > 1e-6 * float(advantages.abs().max())
    check_relative(advantages, rewards, groups, torch.ones(3, dtype=torch.bool))


def test_who_was_not_judged_has_no_advantage_and_a_lone_one_any() -> None:
    rewards, groups = torch.tensor([1.0, 0.5, 0.25]), torch.tensor([0, 0, 1])
    included = torch.tensor([True, False, True])
    check_relative(torch.tensor([0.7, 0.0, 0.3]), rewards, groups, included)
    with pytest.raises(StepError, match="without a reward"):
        check_relative(torch.tensor([0.7, 0.1, 0.3]), rewards, groups, included)


def along_tokens() -> tuple[Batch, torch.Tensor]:
    batch = batch_of()
    values = torch.where(batch["loss_mask"], torch.linspace(-1, 1, batch["tokens"].shape[1]), 0.0)
    batch = batch.extended(values=values)
    last = batch["lengths"].unsqueeze(1) - 1
    judged = torch.where(batch["included"], batch["rewards"], 0.0).float().unsqueeze(1)
    return batch, torch.zeros(batch["tokens"].shape).scatter(1, last, judged)


def test_a_reward_is_on_the_last_token_alone() -> None:
    batch, token_rewards = along_tokens()
    check_token_rewards(token_rewards, batch)
    for wrong in (token_rewards.roll(-1, -1), token_rewards.roll(1, -1), token_rewards * 2):
        with pytest.raises(StepError, match="the reward of sample 0 is not on its last token"):
            check_token_rewards(wrong, batch)


def test_behind_the_last_token_nothing_is_expected() -> None:
    batch, token_rewards = along_tokens()
    masks = (batch["loss_mask"], batch["included"])
    late = gae(token_rewards, batch["values"].roll(1, -1), *masks, gamma=0.9, lam=0.8)
    with pytest.raises(StepError, match="advantage: the last advantage of sample 0 is "):
        check_estimates(late, token_rewards, batch, gamma=0.9, lam=0.8)


@SEEDED
@given(st.integers(0, 999), st.sampled_from([0.0, 0.3, 0.95, 1.0]), st.sampled_from([0.0, 0.8, 1.0]))
def test_each_advantage_follows_from_the_next(seed: int, gamma: float, lam: float) -> None:
    batch, _ = along_tokens()
    masks, drawing = (batch["loss_mask"], batch["included"]), torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(batch["tokens"].shape, generator=drawing) for _ in range(2))
    token_rewards, batch = rewards * batch["loss_mask"], batch.extended(values=values * batch["loss_mask"])
    found = gae(token_rewards, batch["values"], *masks, gamma=gamma, lam=lam)
    check_estimates(found, token_rewards, batch, gamma=gamma, lam=lam)
    other = (gamma, lam + 0.5) if gamma else (0.5, lam)
    with pytest.raises(StepError, match="advantage: an advantage of sample 0 is "):
        check_estimates(found, token_rewards, batch, gamma=other[0], lam=other[1])


def test_a_critic_learns_towards_values_and_advantages_as_they_were_estimated() -> None:
    batch, token_rewards = along_tokens()
    masks = (batch["loss_mask"], batch["included"])
    right = gae(token_rewards, batch["values"], *masks, gamma=0.9, lam=0.8)
    whitened = torch.where(batch["loss_mask"], whiten(right.advantages, *masks) + batch["values"], 0.0)
    with pytest.raises(StepError, match="advantage: a return of sample 0 is "):
        check_estimates(right._replace(returns=whitened), token_rewards, batch, gamma=0.9, lam=0.8)


def test_whitened_advantages_have_no_mean() -> None:
    batch, _ = along_tokens()
    mask, included = batch["loss_mask"], batch["included"]
    check_whitened(whiten(batch["values"], mask, included), mask, included)
    with pytest.raises(StepError, match="whitened advantages have mean"):
        check_whitened(whiten(batch["values"], torch.ones_like(mask)), mask, included)


# ------------------------------------------------------------------------------------ weights, generators, arithmetic


def test_a_step_begins_with_the_policy_that_was_sent() -> None:
    model = torch.nn.Linear(2, 2)
    check_sent(LiveWeights(model), None)
    receipt = replace(RECEIPT, weights_digest=weights_digest(dict(model.named_parameters())))
    check_sent(LiveWeights(model), receipt)
    model.weight.data[0, 0] += 1e-6
    with pytest.raises(
        StepError, match=r"sync or optimizer: the policy has weights \w+\n.*of the last sync, version 3"
    ):
        check_sent(LiveWeights(model), receipt)


def test_a_policy_that_is_written_between_steps_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounding(state: Any, *given: Any) -> None:
        state.decoder.norm.data.copy_(state.decoder.norm.data.bfloat16())

    monkeypatch.setattr("rlcore.controllers.synchronous.save_checkpoint", rounding)
    with pytest.raises(StepError, match="sync or optimizer: the policy has weights"):
        recorded(config(output={"checkpoint_every": 1}), tmp_path)


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
    with pytest.raises(ZeroDivisionError), check_undrawn("rollout"):
        draw()
        raise ZeroDivisionError


def test_draws_on_a_gpu_are_seen_and_a_gpu_that_is_first_used_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    with check_undrawn("rollout"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    said = "rollout: something has drawn from the generator of GPU 1"
    with pytest.raises(LevelError, match=said), check_undrawn("rollout"):
        torch.rand(1, generator=gpus[1])


@pytest.mark.parametrize(
    ("place", "phases"),
    [
        ("recipes.rollout.requests", ("rollout",)),
        ("trainers.local.divide_among_workers", ("forward", "loss", "backward")),
        ("trainers.models.build_critic", ("reference", "optimizer")),
    ],
)
def test_a_run_looks_at_its_generators(
    place: str, phases: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = place.rpartition(".")
    honest = getattr(importlib.import_module(f"rlcore.{module}"), name)

    def drawing(*given: Any) -> Any:
        torch.rand(1)
        return honest(*given)

    monkeypatch.setattr(f"rlcore.{place}", drawing)
    with pytest.raises(LevelError, match="something has drawn from the generator of torch") as raised:
        recorded(config("ppo"), tmp_path)
    assert raised.value.phases == phases


def test_what_the_process_is_told_of_arithmetic_is_seen_in_the_next_step() -> None:
    with following(Padding()):
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


# -------------------------------------------------------------------------------------------------------------- resume


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "patched", "said"),
    [
        (
            "ppo",
            "rlcore.trainers.local.restore_optimizer",
            "optimizer of the critic, optimizer of the policy differ",
        ),
        ("grpo", "rlcore.checkpoints.resume.prompts_of", "next prompts differ"),
    ],
)
def test_a_run_that_goes_on_is_where_the_other_was(
    name: str, patched: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = with_section(with_section(config(name), "training", {"num_steps": 3}), "output", {"checkpoint_every": 1})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=1)
    again = with_section(of, "output", {"resume": str(tmp_path / "lost")})
    assert min(step for step, *_ in recorded(again, tmp_path / "resumed").leaves) == 1
    monkeypatch.setattr(patched, lambda *given: [])
    with pytest.raises(CheckpointError, match=said):
        recorded(again, tmp_path / "again")
