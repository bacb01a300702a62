"""A batch holds trajectories of several turns token by token, and a step learns only what the policy sampled."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.checks import Checks
from rlcore.data.batch import Batch, dense_batch
from rlcore.data.microbatches import build_microbatch
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import NOT_SAMPLED, Role, Trajectory
from rlcore.determinism import at_level
from rlcore.errors import LevelError
from rlcore.train import Step, TrainState, grpo, metrics_of_step, read_tokens
from tests.rlcore.data.trajectories import drawn_parts, trajectory_of
from tests.rlcore.training.recorded import config
from tests.rlcore.training.test_steps import Kept, check_gradients, state_of
from tests.support.traces import SEEDED

P, A, T = Role.PROMPT, Role.ASSISTANT, Role.TOOL
PAD = 2
TRAJECTORIES = [
    trajectory_of([(P, [3, 4]), (A, [5, 6]), (T, [7, 8, 3]), (A, [4])]),
    trajectory_of([(P, [3, 4]), (A, [8])], sample_index=1),
    trajectory_of([(P, [5, 6, 7]), (A, [3]), (A, [4, 3]), (T, [6, 5])], prompt_id="q"),
    trajectory_of([(P, [5, 6, 7]), (A, [8, 8]), (T, [4]), (A, [7, 6, 5])], sample_index=1, prompt_id="q"),
]
"""Two of each prompt: with a hole in the mask, of one turn, ending with a tool, and with a hole again."""
SCORES = Scores([1.0, 0.0, 0.25, 0.75], {})


def test_each_token_of_two_turns_lands_where_it_should() -> None:
    batch = dense_batch(TRAJECTORIES[:2], Scores([1.0, None], {}), pad_id=PAD)
    assert batch["tokens"].tolist() == [[3, 4, 5, 6, 7, 8, 3, 4], [3, 4, 8, PAD, PAD, PAD, PAD, PAD]]
    assert batch["loss_mask"].int().tolist() == [[0, 0, 1, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 0, 0]]
    assert batch["rollout_logprobs"].tolist() == [
        [0.0, 0.0, -0.375, -0.5, 0.0, 0.0, 0.0, -1.0],
        [0.0, 0.0, -0.375, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
    assert batch["policy_versions"].tolist() == [[-1, -1, 4, 4, -1, -1, -1, 5], [-1, -1, 4, -1, -1, -1, -1, -1]]
    assert batch["lengths"].tolist() == [8, 3] and batch["prompt_lengths"].tolist() == [2, 2]
    assert batch["groups"].tolist() == [0, 0]
    assert batch["rewards"].tolist() == [1.0, 0.0] and batch["included"].tolist() == [True, False]
    assert (batch["tokens"].dtype, batch["rollout_logprobs"].dtype) == (torch.int64, torch.float32)


@pytest.mark.full
@SEEDED
@given(st.lists(drawn_parts, min_size=1, max_size=5))
def test_any_trajectories_are_read_back_from_their_batch(all_parts: list[list[tuple[Role, list[int]]]]) -> None:
    trajectories = [trajectory_of(parts, prompt_id=str(number)) for number, parts in enumerate(all_parts)]
    scores = Scores([0.5] * len(trajectories), {})
    batch = dense_batch(trajectories, scores, pad_id=PAD)
    for number, trajectory in enumerate(trajectories):
        row = {name: entry[number] for name, entry in batch.items()}
        length = len(trajectory.tokens)
        assert int(row["lengths"]) == length and int(row["prompt_lengths"]) == trajectory.num_prompt_tokens
        for name, values, pad in (
            ("tokens", trajectory.tokens, PAD),
            ("loss_mask", trajectory.loss_mask, False),
            ("rollout_logprobs", trajectory.logprobs, 0.0),
            ("policy_versions", trajectory.policy_versions, NOT_SAMPLED),
        ):
            assert tuple(row[name][:length].tolist()) == values, name
            assert set(row[name][length:].tolist()) <= {pad}, name


def with_nan_outside(trajectory: Trajectory, logprobs: Sequence[float]) -> Trajectory:
    """The trajectory with these log-probabilities under its mask."""
    pairs = zip(logprobs, trajectory.loss_mask, strict=True)
    return replace(trajectory, logprobs=tuple(each if is_learned else torch.nan for each, is_learned in pairs))


def sampled_by(decoder: torch.nn.Module) -> list[Trajectory]:
    """The trajectories with log-probabilities near the policy's, and NaN where nobody sampled."""
    noise, found = torch.Generator().manual_seed(3), []
    for each in TRAJECTORIES:
        tokens = torch.tensor([each.tokens])
        with torch.no_grad():
            logprobs = torch.log_softmax(decoder(tokens)[0, :-1], -1).gather(-1, tokens[0, 1:, None]).flatten()
        near = [0.0, *(logprobs + 1.5 * torch.randn(logprobs.shape, generator=noise)).tolist()]
        found.append(with_nan_outside(each, near))
    return found


def by_hand(policy: torch.nn.Module, trajectories: list[Trajectory], *, learns_tools: bool) -> torch.Tensor:
    """The loss of the step in fp64, one trajectory after another: mean over tokens of -w A logprob.

    w is the truncated ratio of policy to sampler. With `learns_tools`, as if everything after the prompt were sampled.
    """
    rewards = torch.tensor(SCORES.rewards, dtype=torch.float64).reshape(2, 2)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for advantage, each in zip(advantages.flatten().tolist(), trajectories, strict=True):
        logits = policy(torch.tensor([each.tokens]))[0].double()
        for position in range(each.num_prompt_tokens, len(each.tokens)):
            if each.loss_mask[position] or learns_tools:
                row = logits[position - 1]
                logprob = row[each.tokens[position]] - row.exp().sum().log()
                before = float(logprob.detach())
                sampled = each.logprobs[position] if each.loss_mask[position] else before
                weight = min(math.exp(before - sampled), 2.0)
                total = total - weight * advantage * logprob
                count += 1
    return total / count


def rollout_of(trajectories: list[Trajectory]) -> Callable[[TrainState, Step], Batch]:
    """Return what takes the place of a rollout: these trajectories."""

    def rollout(state: TrainState, step: Step) -> Batch:
        step.rollouts, step.scores = trajectories, SCORES
        step.requests = [each.request for each in trajectories]
        return dense_batch(trajectories, SCORES, pad_id=PAD)

    return rollout


@pytest.mark.parametrize("token_budget", [24, 10**5])
def test_a_grpo_step_learns_nothing_of_what_a_tool_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_budget: int
) -> None:
    of = config(optimizer={"max_gradient_norm": None}, correction={"weights": "token", "high": 2.0},
                runtime={"token_budget": token_budget})  # fmt: skip
    recorder = Kept()
    state = state_of(of, tmp_path, recorder)
    policy = copy.deepcopy(state.decoder)
    trajectories = sampled_by(policy)

    monkeypatch.setattr("rlcore.train.rollout", rollout_of(trajectories))
    state.record.begin_step(0)
    with at_level("off", policy.config, length=64):
        grpo(state, step := Step(0))
        metrics = metrics_of_step(step)

    assert metrics["completion_length_max"] == 5 and metrics["completion_length_min"] == 1
    by_hand(policy, trajectories, learns_tools=False).backward()  # type: ignore[no-untyped-call]
    check_gradients(recorder, "policy", policy)
    policy.zero_grad()
    by_hand(policy, trajectories, learns_tools=True).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError):
        check_gradients(recorder, "policy", policy)


def test_at_level_invariant_each_sampled_token_of_each_turn_matches_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trajectory after another gives the trainer's bits; an ulp on a token of a second turn is found."""
    of = config()
    state = state_of(of, tmp_path, Kept(), "invariant")
    monkeypatch.setattr(Checks, "_draw_again", lambda self, step: None)
    with at_level("invariant", state.decoder.config, length=64):
        right = []
        for each in TRAJECTORIES:
            alone = build_microbatch(dense_batch([each], Scores([0.0], {}), pad_id=PAD), [0], 0)
            with torch.no_grad():
                own = read_tokens(of.sampling.temperature, state.decoder, alone)[0][0].tolist()
            row = [*[0.0] * each.num_prompt_tokens, *own][: len(each.tokens)]
            right.append(with_nan_outside(each, row))
        moved = [x * (1 - 2**-22) if at == 7 else x for at, x in enumerate(right[0].logprobs)]
        for trajectories in ([replace(right[0], logprobs=tuple(moved)), *right[1:]], right):
            monkeypatch.setattr("rlcore.train.rollout", rollout_of(trajectories))
            if trajectories is right:
                grpo(state, step := Step(0))
                assert metrics_of_step(step)["grad_norm"] > 0.0
            else:
                with pytest.raises(LevelError):
                    grpo(state, Step(0))
