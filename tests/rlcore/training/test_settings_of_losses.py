"""Every loss and advantage that can be set: a step runs with it, and is what the pure function says."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms.losses import PolicyLoss, Tokens, cispo, dppo_tv, gspo, ipo, masked_is, masked_is_keep, ppo_clip
from rlcore.algorithms.named import ADVANTAGES, LOSSES
from rlcore.config import ADVANTAGES as ADVANTAGE_NAMES
from rlcore.config import LOSSES as NAMES
from rlcore.determinism import at_level
from rlcore.errors import RewardError
from rlcore.train import make_step
from tests.rlcore.training.recorded import config, first_difference, recorded
from tests.rlcore.training.test_steps import Kept, state_of
from tests.support.run_configs import with_section

REWARDS = f"{__name__}:letters"


def letters(completions: list[str], **_: Any) -> list[float]:
    """More for more letters, and for an a."""
    return [len(text) + 0.5 * text.count("a") for text in completions]


def unjudged(completions: list[str], **_: Any) -> list[None]:
    return [None for _ in completions]


def stepped(directory: Path, *, reward: str = REWARDS, **algorithm: Any) -> Kept:
    """What one step records, in two passes over one lane of all samples, the second far from the sampler."""
    of = config(
        algorithm={"name": "grpo", "aggregation": "token-mean", **algorithm},
        task={"name": "reverse_text", "rewards": (reward,), "num_prompts": 24, "num_heldout": 4},
        optimizer={"learning_rate": 0.03},
        training={"num_steps": 1, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 16, "num_epochs": 2},
    )
    recorder = Kept()
    state = state_of(of, directory, recorder, "invariant")
    with at_level("invariant", state.decoder.config, length=64):
        make_step(state, 0)
    return recorder


EXPECTED: dict[str, tuple[dict[str, Any], Callable[[Tokens], PolicyLoss]]] = {
    "ppo_clip": ({"clip_eps_high": 0.3}, partial(ppo_clip, clip_eps_high=0.3, dual_clip=None)),
    "gspo": ({"clip_eps_low": 0.1}, partial(gspo, clip_eps_low=0.1)),
    "cispo": ({"clip_eps_high": 0.1}, partial(cispo, clip_eps_high=0.1)),
    "dppo_tv": ({"mask_low": 0.05, "mask_high": 0.01}, partial(dppo_tv, mask_low=0.05, mask_high=0.01)),
    "ipo": ({"proximal_coef": 0.5, "mask_high": 0.01}, partial(ipo, proximal_coef=0.5, mask_high=0.01)),
    "masked_is": (
        {"proximal_coef": 0.2},
        lambda tokens: masked_is(tokens, masked_is_keep(tokens), proximal_coef=0.2),
    ),
}
TO_THE_SAMPLER = {"dppo_tv", "ipo", "masked_is"}


def test_every_loss_is_among_them() -> None:
    assert EXPECTED.keys() == LOSSES.keys() == {*NAMES}
    assert ADVANTAGES.keys() == {*ADVANTAGE_NAMES}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_loss_is_to_the_policy_that_is_its_own(name: str) -> None:
    """Of sampler and policy before the step the numbers differ here; at level invariant they never do."""
    settings, pure = EXPECTED[name]
    policy, old, sampled, advantages = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(9) > torch.arange(6).unsqueeze(-1)
    tokens = Tokens(policy, old, sampled, advantages, mask)
    found = LOSSES[name](tokens, config(algorithm={"name": "grpo", "loss": name, **settings}))
    assert isinstance(found, PolicyLoss)
    other = {"old_logprobs": torch.zeros_like(old)} if name in TO_THE_SAMPLER else {"rollout_logprobs": old}
    expected = pure(tokens._replace(**other))
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.clipped, expected.clipped)


@pytest.mark.full
@pytest.mark.parametrize("name", EXPECTED)
def test_the_loss_of_a_step_is_the_pure_functions(tmp_path: Path, name: str) -> None:
    settings, pure = EXPECTED[name]
    recorder = stepped(tmp_path, loss=name, **settings)
    mask, sampled = recorder.of("rollout", "loss_mask"), recorder.of("rollout", "logprobs")
    first = int(recorder.of("rollout", "prompt_lengths").min())
    width = mask.shape[1] - first
    passes = recorder.values["forward", "policy.logprobs"]
    old = torch.zeros_like(sampled)
    old[:, first:] = passes[0][:, :width]
    assert torch.equal(old, torch.where(mask, sampled, 0.0)), "the first pass is on policy"
    for number, seen in enumerate(passes):
        policy = torch.zeros_like(sampled)
        policy[:, first:] = seen[:, :width]
        found = pure(Tokens(policy, old, sampled, recorder.of("advantage", "advantages"), mask))
        expected = (found.losses * mask).sum() / mask.sum()
        torch.testing.assert_close(recorder.values["loss", "policy"][number], expected, atol=1e-6, rtol=1e-5)
        held = torch.zeros_like(sampled)
        held[:, first:] = recorder.values["forward", "policy.clipped"][number][:, :width]
        assert torch.equal(held, found.clipped.float())
    assert bool(held.any()) or name == "masked_is", "the last pass is far enough for the bounds to count"


def test_remax_is_the_reward_less_that_of_the_greedy_completion(tmp_path: Path) -> None:
    recorder = stepped(tmp_path / "step", advantage="remax")
    mask, tokens = recorder.of("rollout", "loss_mask"), recorder.of("rollout", "tokens")
    lengths, greedy = recorder.of("rollout", "prompt_lengths"), recorder.of("reward", "greedy_rewards")
    decoder, tokenizer = fresh(tmp_path / "fresh")
    expected = []
    for sample in range(0, 16, 4):
        read = tokens[sample, : lengths[sample]].tolist()
        drawn: list[int] = []
        while len(drawn) < 8 and tokenizer.eos_id not in drawn:
            with torch.no_grad():
                drawn.append(int(decoder(torch.tensor([read + drawn]))[0, -1].argmax()))
        text = tokenizer.decode([token for token in drawn if token != tokenizer.eos_id])
        expected += letters([text]) * 4
    assert greedy.tolist() == expected
    assert len(set(expected)) > 1
    rewards = recorder.of("reward", "rewards").float()
    assert torch.equal(recorder.of("advantage", "advantages"), torch.where(mask, (rewards - greedy)[:, None], 0.0))


def fresh(directory: Path) -> tuple[Any, Any]:
    """The policy with which the step begins, and its tokenizer."""
    of = config(task={"name": "reverse_text", "rewards": (REWARDS,), "num_prompts": 24, "num_heldout": 4})
    with at_level("invariant", state_of(of, directory, Kept(), "invariant").decoder.config, length=64):
        state = state_of(of, directory, Kept(), "invariant")
    return state.decoder, state.tokenizer


@pytest.mark.full
def test_greedy_completions_depend_on_nobody_beside_them(tmp_path: Path) -> None:
    of = config(algorithm={"name": "grpo", "advantage": "remax", "loss": "ipo"}, training={
        "num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4})  # fmt: skip
    other = with_section(of, "runtime", {"arrival_seed": 3, "concurrency": 3, "preempt_every": 1, "world_size": 3})
    found = recorded(of, tmp_path / "one")
    assert (1, "reward", "greedy_rewards", 0) in found.leaves
    assert first_difference(found, recorded(other, tmp_path / "other")) is None


def test_a_greedy_completion_that_nobody_can_judge_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"the greedy completion of prompt \S+ has no reward"):
        stepped(tmp_path, advantage="remax", reward=f"{__name__}:unjudged")
