"""Rewards of texts: 1 for the answer that is ended, and for nothing else; more for more that is right."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.rewards.text import common, exact, matching
from rlcore.types import StopReason

REWARDS = {"exact": exact, "matching": matching, "common": common}
TEXTS = st.text("ab\0\ufffd", max_size=5)
few = settings(max_examples=2 * settings().max_examples)
every_reward = pytest.mark.parametrize("function", REWARDS.values(), ids=REWARDS)
Function = Callable[..., list[float]]


def reward(function: Function, text: str, answer: str, reason: str = "eos") -> float:
    (value,) = function(completions=[text], answer=[answer], stop_reasons=[reason], other=[None])
    return value


@every_reward
@few
@given(text=TEXTS, answer=TEXTS, reason=st.sampled_from(StopReason))
def test_one_is_for_the_ended_answer_alone(function: Function, text: str, answer: str, reason: StopReason) -> None:
    value = reward(function, text, answer, reason.value)
    assert 0 <= value <= 1
    assert (value == 1) == (text == answer and reason == StopReason.EOS)


@pytest.mark.parametrize(
    ("text", "reason", "by_place", "by_subsequence"),
    [
        ("abc", "eos", 1, 1),
        ("abc", "length", 3 / 4, 6 / 7),
        ("abcabc", "length", 3 / 6, 6 / 10),
        ("abd", "eos", 3 / 4, 6 / 8),
        ("ab", "eos", 2 / 4, 6 / 7),
        ("xabc", "eos", 0, 8 / 9),
        ("xyz", "eos", 1 / 4, 2 / 8),
        ("xyz", "stop_id", 0, 0),
        ("", "eos", 0, 2 / 5),
    ],
)
def test_known_values(text: str, reason: str, by_place: float, by_subsequence: float) -> None:
    assert reward(matching, text, "abc", reason) == pytest.approx(by_place)
    assert reward(common, text, "abc", reason) == pytest.approx(by_subsequence)


@few
@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_a_subsequence_is_at_least_as_long_as_what_agrees_in_place(text: str, answer: str) -> None:
    num_symbols = len(text) + len(answer) + 2
    in_place = reward(matching, text, answer) * (max(len(text), len(answer)) + 1)
    assert round(reward(common, text, answer) * num_symbols / 2) >= round(in_place)


@every_reward
def test_each_completion_has_its_own_answer(function: Function) -> None:
    given_texts, answers = ["a", "b", "c"], ["a", "a", "c"]
    values = function(completions=given_texts, answer=answers, stop_reasons=["eos", "eos", "length"])
    assert values == [
        reward(function, *each) for each in zip(given_texts, answers, ["eos", "eos", "length"], strict=True)
    ]
    assert values[0] == 1 > values[1]
