"""A trajectory holds every token once, in its turn, and learns the last turn alone."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.errors import NonFiniteError
from rlcore.types import StopReason
from tests.rlcore.data.trajectories import drawn_parts, drawn_tokens, request_of, trajectory_of
from tests.support.traces import SEEDED

BRANCH = trajectory_of([3, 4], [5, 6], [7, 8], [5])


@SEEDED
@given(parts=drawn_parts)
def test_turns_tile_what_follows_the_prompt(parts: tuple[list[int], ...]) -> None:
    trajectory, (prompt, *turns) = trajectory_of(*parts), parts
    assert [list(trajectory.tokens_of(turn)) for turn in trajectory.turns] == [each for each in turns if each]
    assert [turn.begin for turn in trajectory.turns[1:]] == [turn.end for turn in trajectory.turns[:-1]]
    assert (trajectory.num_prompt_tokens, trajectory.turns[0].begin) == (len(prompt), len(prompt))
    assert len(trajectory.logprobs) == len(trajectory.tokens) == trajectory.turns[-1].end
    assert list(trajectory.loss_tokens) == turns[-1], "a reasoning is learned by its own trajectory"
    assert len(trajectory.sampled_turns) == (2 if trajectory.is_branch else 1)


@SEEDED
@given(
    prompt=drawn_tokens,
    drawn=drawn_tokens,
    text=st.text(max_size=5),
    reason=st.sampled_from(StopReason),
    data=st.data(),
)
def test_a_trajectory_of_one_turn_is_a_completion_and_back(
    prompt: list[int], drawn: list[int], text: str, reason: StopReason, data: st.DataObject
) -> None:
    version = data.draw(st.integers(0, 9))
    logprobs = data.draw(st.lists(st.floats(-50, 0, width=32), min_size=len(drawn), max_size=len(drawn)))
    trajectory = build_single_turn(
        request_of(prompt),
        drawn,
        logprobs,
        text=text,
        stop_reason=reason,
        policy_version=version,
        weights_digest="digest",
    )
    assert trajectory.tokens == (*prompt, *drawn)
    assert trajectory.loss_tokens == tuple(drawn)
    again = build_single_turn(
        trajectory.request,
        trajectory.completion_tokens,
        trajectory.completion_logprobs,
        text=trajectory.completion_text,
        stop_reason=trajectory.stop_reason,
        policy_version=version,
        weights_digest=trajectory.weights_digest,
    )
    assert again == trajectory == pickle.loads(pickle.dumps(trajectory))
    assert [*map(float.hex, again.completion_logprobs)] == [*map(float.hex, logprobs)], "to the bit"


def test_a_reasoning_what_was_forced_and_an_item_are_one_completion() -> None:
    assert (BRANCH.completion_tokens, BRANCH.completion_text) == ((5, 6, 7, 8, 5), "firstforceditem")
    assert BRANCH.stop_reason is StopReason.EOS


@pytest.mark.parametrize("logprob", [float("nan"), -float("inf")])
def test_a_learned_token_has_a_log_probability(logprob: float) -> None:
    with pytest.raises(NonFiniteError, match=f"token 6 of sample 0 of prompt p has log-probability {logprob}"):
        replace(BRANCH, logprobs=(*BRANCH.logprobs[:-1], logprob))
    assert replace(BRANCH, logprobs=(*[logprob] * 6, BRANCH.logprobs[-1])).loss_tokens == BRANCH.loss_tokens


def test_a_trajectory_cannot_be_written() -> None:
    with pytest.raises(AttributeError):
        BRANCH.tokens = ()  # type: ignore[misc]
    assert isinstance(BRANCH, Trajectory)
