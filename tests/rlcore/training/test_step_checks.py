"""What holds of every step is looked at in every step: each check passes what is right, and finds what is not."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlcore.algorithms.advantages import dr_grpo, gae, grpo, rloo, whiten
from rlcore.determinism import check_level
from rlcore.errors import CheckpointError, LevelError, StepError
from rlcore.numerics.level import following
from rlcore.numerics.padding import Padding
from rlcore.rewards.score import Scores
from rlcore.training.rollouts import dense_batch
from rlcore.training.step_checks import (
    check_batch,
    check_completions,
    check_estimates,
    check_frozen,
    check_lanes,
    check_no_gradient,
    check_relative,
    check_requests,
    check_token_rewards,
    check_whitened,
)
from rlcore.types import Completion, Prompt, SampleRequest, SamplingParams, StopReason
from rlcore.weights.receipts import Receipt
from tests.rlcore.training.recorded import Lost, config, recorded
from tests.rlcore.training.test_invariance import with_section
from tests.trace.traces import SEEDED

EOS = 2
RECEIPT = Receipt(3, "digest", {}, (), None, (), 0.0, (), 0, 0.0)
REWARDS: list[float | None] = [1.0, 0.5, None, 0.25]
LENGTHS = (3, 1, 2, 4)


def request(prompt: str, index: int, key: int) -> SampleRequest:
    return SampleRequest(Prompt(prompt, prompt, (5, 6)), index, key, SamplingParams(max_tokens=4))


WANTED = [request("p", 0, 10), request("p", 1, 11), request("q", 0, 12), request("q", 1, 13)]


def completion(wanted: SampleRequest, length: int) -> Completion:
    tokens = (*range(7, 6 + length), EOS)
    return Completion(wanted, tokens, -torch.ones(length), "", StopReason.EOS, 3, "digest")


COMPLETIONS = [completion(wanted, length) for wanted, length in zip(WANTED, LENGTHS, strict=True)]
SCORES = Scores(REWARDS, {})


def batch_of() -> TensorDict:
    return dense_batch(COMPLETIONS, SCORES, pad_id=EOS)


# ----------------------------------------------------------------------------------------------- requests, completions


def test_keys_are_all_different_and_not_those_of_the_step_before() -> None:
    assert check_requests(WANTED, frozenset({1, 2})) == {10, 11, 12, 13}
    with pytest.raises(StepError, match="sample 0 of prompt p and sample 0 of prompt q share a key"):
        check_requests([*WANTED[:2], replace(WANTED[2], key=10)], frozenset())
    with pytest.raises(StepError, match="rollout: sample 1 of prompt p has a key of the step before") as raised:
        check_requests(WANTED, frozenset({11}))
    assert raised.value.phases == ("rollout",)


def test_each_request_has_its_own_completion_of_the_last_weights() -> None:
    check_completions(WANTED, COMPLETIONS, RECEIPT)
    check_completions(WANTED, COMPLETIONS, None)
    for wrong, said in (
        ([COMPLETIONS[1], COMPLETIONS[0], *COMPLETIONS[2:]], "in the place of sample 0 of prompt p stands sample 1"),
        ([replace(COMPLETIONS[0], weights_digest="old"), *COMPLETIONS[1:]], "was drawn with weights old"),
        ([replace(COMPLETIONS[0], tokens=()), *COMPLETIONS[1:]], "has 0 tokens and 3 log-probabilities"),
        ([replace(COMPLETIONS[0], tokens=(1, 2)), *COMPLETIONS[1:]], "has 2 tokens and 3 log-probabilities"),
        ([completion(WANTED[0], 5), *COMPLETIONS[1:]], "has 5 tokens"),
    ):
        with pytest.raises(StepError, match=said):
            check_completions(WANTED, wrong, RECEIPT)


# --------------------------------------------------------------------------------------------------------------- batch


def mask_without_the_end(batch: TensorDict) -> None:
    """As if the end of sequence, which is the pad too, were padding: no token is left of the shortest."""
    batch["loss_mask"] = batch["loss_mask"] & (batch["tokens"] != EOS)


def other_tokens(batch: TensorDict) -> None:
    batch["tokens"][1, 2] = 9


def one_group(batch: TensorDict) -> None:
    batch["groups"] = torch.zeros_like(batch["groups"])


def a_group_each(batch: TensorDict) -> None:
    batch["groups"] = torch.arange(len(batch["groups"]))


def groups_by_place(batch: TensorDict) -> None:
    batch["groups"] = torch.tensor([0, 1, 0, 1])


def moved_rewards(batch: TensorDict) -> None:
    batch["rewards"] = batch["rewards"].roll(1)


def judged_by_nobody(batch: TensorDict) -> None:
    batch["included"] = torch.ones_like(batch["included"])


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (mask_without_the_end, "2 tokens of sample 0 are learned, and 3 were drawn"),
        (other_tokens, "tokens of the batch are not those that were drawn"),
        (one_group, "1 groups of 2 prompts"),
        (a_group_each, "4 groups of 2 prompts"),
        (groups_by_place, "2 groups of 2 prompts"),
        (moved_rewards, "sample 0 has reward 0.25 in the batch, and was given 1.0"),
        (judged_by_nobody, "sample 2 has reward 0.0 in the batch, and was given None"),
    ],
)
def test_a_batch_holds_what_was_drawn_and_judged(break_it: Callable[[TensorDict], None], said: str) -> None:
    batch = batch_of()
    check_batch(batch, COMPLETIONS, SCORES)
    break_it(batch)
    with pytest.raises(StepError, match=said):
        check_batch(batch, COMPLETIONS, SCORES)


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
    with pytest.raises(StepError, match="nobody judged"):
        check_relative(torch.tensor([0.7, 0.1, 0.3]), rewards, groups, included)


def along_tokens() -> tuple[TensorDict, torch.Tensor]:
    batch = batch_of()
    batch["values"] = torch.where(batch["loss_mask"], torch.linspace(-1, 1, batch["tokens"].shape[1]), 0.0)
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
    check_estimates(gae(token_rewards, batch["values"], *masks, gamma=0.9, lam=0.8), token_rewards, batch)
    late = gae(token_rewards, batch["values"].roll(1, -1), *masks, gamma=0.9, lam=0.8)
    with pytest.raises(StepError, match="the last advantage of sample 0"):
        check_estimates(late, token_rewards, batch)


def test_whitened_advantages_have_no_mean() -> None:
    batch, _ = along_tokens()
    mask, included = batch["loss_mask"], batch["included"]
    check_whitened(whiten(batch["values"], mask, included), mask, included)
    with pytest.raises(StepError, match="whitened advantages have mean"):
        check_whitened(whiten(batch["values"], torch.ones_like(mask)), mask, included)


# ------------------------------------------------------------------------------------------------------ lanes, weights


def test_every_sample_and_token_is_read_once() -> None:
    masks = [torch.tensor([[True, False], [True, True]]), torch.tensor([[True, True]])]
    check_lanes(masks, 5, 3)
    for wrong in (masks[:1], [*masks, masks[1]], [masks[0], torch.tensor([[True, False]])]):
        with pytest.raises(StepError, match="the passes of an update read"):
            check_lanes(wrong, 5, 3)


def test_a_pass_begins_without_gradients() -> None:
    model = torch.nn.Linear(2, 2)
    check_no_gradient(model.parameters())
    model(torch.ones(2)).sum().backward()
    with pytest.raises(StepError, match="begins with the gradients"):
        check_no_gradient(model.parameters())


def test_nobody_writes_the_reference() -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    first = check_frozen(model, None)
    assert check_frozen(model, first) == first
    model.load_state_dict(torch.nn.Linear(2, 2).state_dict())
    with pytest.raises(StepError, match="reference policy were written"):
        check_frozen(model, first)


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


@pytest.mark.parametrize(
    ("name", "patched", "said"),
    [
        ("ppo", "rlcore.training.resume.restore_optimizer", "optimizer of the critic, optimizer of the policy differ"),
        ("grpo", "rlcore.training.resume.prompts_of", "next prompts differ"),
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
