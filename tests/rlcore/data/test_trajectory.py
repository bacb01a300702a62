"""A trajectory holds every token once, in the turn of its author, and refuses parts that do not belong together."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.data.trajectory import NOT_SAMPLED, Role, Turn, build_single_turn
from rlcore.errors import InvalidValueError, NonFiniteError, RlcoreError, ShapeError
from rlcore.types import StopReason
from tests.rlcore.data.trajectories import drawn_parts, drawn_tokens, request_of, trajectory_of
from tests.support.traces import SEEDED

Parts = list[tuple[Role, list[int]]]
TWO_TURNS = trajectory_of([(Role.PROMPT, [3, 4]), (Role.ASSISTANT, [5, 6]), (Role.TOOL, [7, 8]), (Role.ASSISTANT, [5])])
PROMPT, FIRST, TOOL, SECOND = TWO_TURNS.turns


@SEEDED
@given(parts=drawn_parts)
def test_any_sequence_of_turns_tiles(parts: Parts) -> None:
    trajectory = trajectory_of(parts)
    assert [(turn.role, list(trajectory.tokens_of(turn))) for turn in trajectory.turns] == parts
    assert sum(turn.end - turn.begin for turn in trajectory.turns) == len(trajectory.tokens)
    assert trajectory.num_prompt_tokens == len(parts[0][1])
    sampled = [token for role, tokens in parts if role is Role.ASSISTANT for token in tokens]
    assert list(trajectory.loss_tokens) == sampled
    assert len(trajectory.assistant_turns) == sum(role is Role.ASSISTANT for role, _ in parts)
    for turn in trajectory.assistant_turns:
        (version,) = set(trajectory.policy_versions[turn.begin : turn.end])
        assert trajectory.weights_digests[version] == f"weights {version}"


@SEEDED
@given(parts=drawn_parts, data=st.data())
def test_turns_that_leave_a_gap_or_overlap_are_refused(parts: Parts, data: st.DataObject) -> None:
    trajectory = trajectory_of(parts)
    number = data.draw(st.integers(0, len(parts) - 1))
    edge, by = data.draw(st.sampled_from(["begin", "end"])), data.draw(st.sampled_from([-1, 1]))
    turn = trajectory.turns[number]
    begin, end = (turn.begin + by, turn.end) if edge == "begin" else (turn.begin, turn.end + by)
    turns = list(trajectory.turns)
    turns[number] = replace(turn, begin=begin, end=end)
    with pytest.raises(InvalidValueError, match="that tile tokens 0 to"):
        replace(trajectory, turns=tuple(turns))


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
    assert trajectory.loss_mask == (False,) * len(prompt) + (True,) * len(drawn)
    assert trajectory.policy_versions == (NOT_SAMPLED,) * len(prompt) + (version,) * len(drawn)
    again = build_single_turn(
        trajectory.request,
        trajectory.completion_tokens,
        trajectory.completion_logprobs,
        text=trajectory.completion_text,
        stop_reason=trajectory.stop_reason,
        policy_version=version,
        weights_digest=trajectory.weights_digests[version],
    )
    assert again == trajectory == pickle.loads(pickle.dumps(trajectory))
    assert [*map(float.hex, again.completion_logprobs)] == [*map(float.hex, logprobs)], "to the bit"


def test_a_completion_of_several_turns_is_all_after_the_prompt() -> None:
    begin = TWO_TURNS.num_prompt_tokens
    assert TWO_TURNS.completion_tokens == TWO_TURNS.tokens[begin:]
    assert TWO_TURNS.completion_logprobs == TWO_TURNS.logprobs[begin:]
    assert TWO_TURNS.completion_text == "".join(turn.text for turn in TWO_TURNS.turns[1:])
    assert TWO_TURNS.stop_reason is StopReason.LENGTH


NAN, INF = float("nan"), float("inf")
WRONG: dict[str, tuple[dict[str, Any], type[RlcoreError], str]] = {
    "a short mask": (
        {"loss_mask": (False,)},
        ShapeError,
        "loss_mask of sample 0 of prompt p has 1 values for 7 tokens",
    ),
    "a long row of logprobs": ({"logprobs": (0.0,) * 8}, ShapeError, "logprobs of sample 0 of prompt p has 8 values"),
    "no versions": ({"policy_versions": ()}, ShapeError, "policy_versions of sample 0 of prompt p has 0 values"),
    "a token more": ({"tokens": (*TWO_TURNS.tokens, 3)}, ShapeError, "has 7 values for 8 tokens"),
    "no turn": ({"turns": ()}, InvalidValueError, r"has turns \[\]"),
    "only a prompt": ({"turns": (PROMPT,)}, InvalidValueError, r"has turns \['prompt'\]"),
    "two prompts": (
        {"turns": (PROMPT, FIRST, Turn(Role.PROMPT, 4, 6, ""), SECOND)},
        InvalidValueError,
        r"has turns \['prompt', 'assistant', 'prompt', 'assistant'\]",
    ),
    "the last turn missing": ({"turns": (PROMPT, FIRST, TOOL)}, InvalidValueError, r"\(4, 6\)\]"),
    "turns out of order": ({"turns": (PROMPT, TOOL, FIRST, SECOND)}, InvalidValueError, "that tile tokens 0 to 7"),
    "another prompt": ({"tokens": (9, *TWO_TURNS.tokens[1:])}, InvalidValueError, r"begins with tokens \[9, 4\]"),
    "a mask on the prompt": (
        {"loss_mask": (False, True, True, True, False, False, True)},
        InvalidValueError,
        "is set in the prompt turn of tokens 0 to 2",
    ),
    "a mask on the tool": (
        {"loss_mask": (False, False, True, True, False, True, True)},
        InvalidValueError,
        "is set in the tool turn of tokens 4 to 6",
    ),
    "NaN under the mask": (
        {"logprobs": (0.0, 0.0, -1.0, NAN, 0.0, 0.0, -1.0)},
        NonFiniteError,
        "token 3 of sample 0 of prompt p has log-probability nan",
    ),
    "minus infinity under the mask": (
        {"logprobs": (0.0, 0.0, -1.0, -1.0, 0.0, 0.0, -INF)},
        NonFiniteError,
        "token 6 of sample 0 of prompt p has log-probability -inf",
    ),
    "a version without a digest": ({"weights_digests": {4: "weights 4"}}, InvalidValueError, r"digests of \[4\]"),
    "a digest without a token": (
        {"weights_digests": {**TWO_TURNS.weights_digests, 6: "weights 6"}},
        InvalidValueError,
        r"digests of \[4, 5, 6\]",
    ),
    "a version on the tool": (
        {"policy_versions": (-1, -1, 4, 4, 4, -1, 5)},
        InvalidValueError,
        "prompt and tool turns",
    ),
    "no version under the mask": (
        {"policy_versions": (-1, -1, 4, -1, -1, -1, 5)},
        InvalidValueError,
        "has policy vers",
    ),
}


@pytest.mark.parametrize(("change", "kind", "said"), WRONG.values(), ids=WRONG)
def test_parts_that_do_not_belong_together_are_refused(
    change: dict[str, Any], kind: type[RlcoreError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        replace(TWO_TURNS, **change)


def test_outside_the_mask_log_probabilities_are_not_looked_at() -> None:
    logprobs = (NAN, INF, *TWO_TURNS.logprobs[2:4], NAN, -INF, TWO_TURNS.logprobs[6])
    assert replace(TWO_TURNS, logprobs=logprobs).loss_tokens == TWO_TURNS.loss_tokens


def test_an_assistant_turn_may_be_left_out_of_the_loss() -> None:
    mask = (False, False, False, False, False, False, True)
    assert replace(TWO_TURNS, loss_mask=mask).loss_tokens == (5,)


def test_a_trajectory_cannot_be_written() -> None:
    with pytest.raises(AttributeError):
        TWO_TURNS.tokens = ()  # type: ignore[misc]
