"""Scores: in the order of the completions whatever ran when, None left out, faults told with their place."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.data.rewards import Reward, TrainerState, verl
from rlcore.data.scoring import Scores, score, shuffled
from rlcore.errors import InvalidValueError, RewardError
from rlcore.types import StopReason
from tests.rlcore.data.completions import completion, completions

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-9, 9), st.booleans())
TABLES = st.integers(1, 6).flatmap(lambda num: st.lists(st.lists(VALUES, min_size=num, max_size=num), min_size=1))
few = settings(max_examples=40)


def giving(values: Any) -> Callable[..., Any]:
    """A function that returns this."""
    return lambda **_: values


def scored(function: Callable[..., Any], texts: Sequence[str] = ("a", "bb", "ccc"), **columns: Sequence[Any]) -> Scores:
    return score([Reward("given", function)], completions(texts, **columns), step=7)


# ----------------------------------------------------------------------------------------------- values and their sum


@few
@given(TABLES, st.data())
def test_totals_are_weighted_sums_of_what_was_given(table: list[list[Any]], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(-10, 10), min_size=len(table), max_size=len(table)))
    rewards = [Reward(f"f{i}", giving(row), weights[i]) for i, row in enumerate(table)]
    scores = score(rewards, completions(["x"] * len(table[0])), step=0)
    assert scores.by_function == {f"f{i}": row for i, row in enumerate(table)}
    for index, total in enumerate(scores.rewards):
        judged = [(weight, row[index]) for weight, row in zip(weights, table, strict=True) if row[index] is not None]
        assert total == (math.fsum(weight * value for weight, value in judged) if judged else None)
        assert scores.included[index] == bool(judged)


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0.5, None],
        (1.0, 0.5, None),
        [torch.tensor(1.0), np.float32(0.5), None],
        [np.bool_(True), torch.tensor(0.5, dtype=torch.bfloat16), None],
    ],
    ids=repr,
)
def test_numbers_of_any_library_are_taken(returned: Any) -> None:
    scores = scored(giving(returned))
    assert scores.rewards == [1.0, 0.5, None]
    assert [type(value) for value in scores.rewards[:2]] == [float, float]


@pytest.mark.parametrize("rewards", [[], [Reward("same", giving([1])), Reward("same", giving([1]))]], ids=len)
def test_rewards_have_names_of_their_own(rewards: list[Reward]) -> None:
    with pytest.raises(InvalidValueError, match="name of its own"):
        score(rewards, completions(["x"]), step=0)


# ------------------------------------------------------------------------------------------ what functions are given


@few
@given(st.lists(st.tuples(st.text("abc"), st.integers()), min_size=1, max_size=6))
def test_columns_belong_to_their_completions(rows: list[tuple[str, int]]) -> None:
    seen: dict[str, Any] = {}

    def function(**given: Any) -> list[int]:
        seen.update(given)
        return list(given["number"])

    texts, numbers = [text for text, _ in rows], [number for _, number in rows]
    scores = scored(function, texts, number=numbers)
    assert scores.rewards == [float(number) for number in numbers]
    assert seen == {
        "prompts": [f"prompt {index}" for index in range(len(rows))],
        "completions": texts,
        "completion_ids": [[*map(ord, text), 0] for text in texts],
        "stop_reasons": ["eos"] * len(rows),
        "number": numbers,
        "trainer_state": TrainerState(7),
    }


def test_a_function_without_columns_is_given_what_it_names() -> None:
    def function(completions: list[str], answer: list[str], absent: int = 4) -> list[int]:
        return [absent + (text == right) for text, right in zip(completions, answer, strict=True)]

    assert scored(function, ["a", "b"], answer=["a", "a"], other=[1, 2]).rewards == [5, 4]


def test_stop_reasons_are_told() -> None:
    cut = completion("a", stop_reason=StopReason.LENGTH)
    ended = Reward("ended", lambda stop_reasons, **_: [reason == "eos" for reason in stop_reasons])
    assert score([ended], [cut, completion("a")], step=0).rewards == [0, 1]


def test_a_column_nobody_has_is_told_before_anything_runs() -> None:
    def function(completions: list[str], anwser: list[str]) -> list[float]:
        return []

    first = Reward("first", lambda **_: 1 / 0)
    with pytest.raises(RewardError, match="wants 'anwser'") as raised:
        score([first, Reward("second", function)], completions(["a"], answer=["a"]), step=0)
    assert raised.value.remedy == "did you mean 'answer'?"


# -------------------------------------------------------------------------------------------------------------- async


def chained(order: Sequence[int]) -> list[Reward]:
    """Async rewards that end in this order; each gives its number for every completion."""
    ended = [asyncio.Event() for _ in order]

    def link(number: int) -> Reward:
        place = order.index(number)

        async def function(completions: list[str], **_: Any) -> list[int]:
            if place:
                await ended[place - 1].wait()
            ended[place].set()
            return [number] * len(completions)

        return Reward(f"f{number}", function, weight=0.1 * (number + 1), timeout_s=20)

    return [link(number) for number in range(len(order))]


@few
@given(st.integers(2, 5).flatmap(lambda num: st.permutations(range(num))))
def test_which_async_function_ends_first_changes_nothing(order: list[int]) -> None:
    scores = score(chained(order), completions(["a", "b"]), step=0)
    assert scores == score(chained(sorted(order)), completions(["a", "b"]), step=0)
    assert list(scores.by_function) == [f"f{number}" for number in range(len(order))]
    assert scores.by_function["f1"] == [1, 1]


def test_the_loop_is_the_same_from_step_to_step() -> None:
    """A client of a verifier's that a function keeps fails in another loop than that of its connections."""
    loops = set()

    async def function(completions: list[str], **_: Any) -> list[int]:
        loops.add(asyncio.get_running_loop())
        return [3 for _ in completions]

    for _ in range(2):
        assert scored(function, ["a"]).rewards == [3]
    with pytest.raises(RewardError):
        score([Reward("function", function, timeout_s=1e-9), failing()], completions(["a"]), step=0)
    assert scored(function, ["a"]).rewards == [3]
    assert len(loops) == 1


def failing() -> Reward:
    async def fails(**_: Any) -> list[int]:
        raise ValueError

    return Reward("fails", fails)


def test_a_sync_function_may_run_a_loop_of_its_own() -> None:
    async def judge() -> int:
        return 3

    assert scored(lambda **_: [asyncio.run(judge())], ["a"]).rewards == [3]


def test_one_that_hangs_is_told() -> None:
    async def hangs(**_: Any) -> list[float]:
        await asyncio.Event().wait()
        return []

    rewards = [Reward("hangs", hangs, timeout_s=0.01), *chained([0])]
    with pytest.raises(RewardError, match=r"hangs took longer than 0\.01 s for 2 completions"):
        score(rewards, completions(["a", "b"]), step=0)


def test_a_timeout_of_its_own_is_not_ours() -> None:
    async def function(**_: Any) -> list[float]:
        raise TimeoutError("the verifier's")

    with pytest.raises(RewardError, match="raised TimeoutError: the verifier's"):
        scored(function)


def test_the_first_that_failed_is_told_whichever_was_faster() -> None:
    late = asyncio.Event()

    async def slow(**_: Any) -> list[float]:
        await late.wait()
        raise ValueError("slow")

    async def fast(**_: Any) -> list[float]:
        late.set()
        raise ValueError("fast")

    with pytest.raises(RewardError, match="function slow raised ValueError: slow"):
        score([Reward("slow", slow), Reward("fast", fast)], completions(["a"]), step=0)


def test_in_a_running_loop_the_remedy_is_told() -> None:
    async def scores() -> Scores:
        return score(chained([0]), completions(["a"]), step=0)

    async def scores_aside() -> Scores:
        return await asyncio.to_thread(score, chained([0]), completions(["a"]), step=0)

    with pytest.raises(RewardError, match="event loop is running"):
        asyncio.run(scores())
    assert asyncio.run(scores_aside()).rewards == [0]


# ------------------------------------------------------------------------------------------------------------- faults


def test_an_exception_names_function_and_sample_and_keeps_its_cause() -> None:
    def function(completions: list[str], **_: Any) -> list[float]:
        return [1 / (len(text) - 2) for text in completions]

    with pytest.raises(RewardError, match="function given raised ZeroDivisionError") as raised:
        scored(function)
    assert "sample 1: prompts 'prompt 1', completions 'bb'" in str(raised.value)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def parsed(text: str) -> float:
    return float(json.loads(text)["reward"])


def by_another_function(completions: list[str], **_: Any) -> list[float]:
    return [parsed(text) for text in completions]


async def awaited_another_function(completions: list[str], **_: Any) -> list[float]:
    return by_another_function(completions)


def verls_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    return parsed(solution_str)


@pytest.mark.parametrize("function", [by_another_function, awaited_another_function, verl(verls_score)])
def test_the_users_own_line_is_reported_and_neither_ours_nor_a_librarys(function: Callable[..., Any]) -> None:
    columns = {"data_source": "x", "answer": "y"}
    with pytest.raises(RewardError) as raised:
        scored(function, ["{}"], **{name: [value] for name, value in columns.items()})
    line = parsed.__code__.co_firstlineno + 1
    assert f"raised KeyError: 'reward', at {__file__}:{line} in parsed (for sample 0:" in raised.value.what
    with pytest.raises(RewardError, match=rf"raised JSONDecodeError: .*, at {__file__}:{line} in parsed"):
        scored(function, ["not JSON"], **{name: [value] for name, value in columns.items()})


def test_an_exception_of_the_whole_batch_says_so() -> None:
    def function(completions: list[str], **_: Any) -> list[float]:
        assert len(completions) < 2
        return [1.0]

    with pytest.raises(RewardError, match="for no sample alone"):
        scored(function)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([1.0, 2.0], "returned 2 values for 3 completions"),
        ([], "returned 0 values"),
        (None, "returned None"),
        (1.0, "returned 1.0"),
        ("abc", "returned 'abc'"),
        ({"score": 1}, "returned {'score': 1}"),
        (torch.tensor(1.0), r"returned tensor\(1.\)"),
        ([1.0, math.nan, 2.0], r"gave nan for sample 1 \(completion 1 of prompt id-prompt 1: 'bb'\)"),
        ([1.0, 2.0, math.inf], "gave inf for sample 2"),
        ([torch.tensor(math.nan), 1, 1], r"gave tensor\(nan\) for sample 0"),
        ([1.0, "2", 3.0], "gave '2' for sample 1"),
        ([1.0, [2.0], 3.0], r"gave \[2.0\] for sample 1"),
        ([10**400, 1, 1], "for sample 0"),
    ],
    ids=repr,
)
def test_what_is_no_reward_is_refused(returned: Any, told: str) -> None:
    with pytest.raises(RewardError, match=told) as raised:
        scored(giving(returned))
    assert "reward function given" in str(raised.value)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (10.0, -10.0), (10.0, 1.0)], ids=repr)
def test_a_sum_beyond_numbers_is_refused(weights: tuple[float, float]) -> None:
    rewards = [Reward(f"of {weight}, {place}", giving([0.0, 1e308]), weight) for place, weight in enumerate(weights)]
    with pytest.raises(RewardError, match="of sample 1 have no finite sum"):
        score(rewards, completions(["a", "b"]), step=0)


# ---------------------------------------------------------------------------------------------------------- shuffling


@few
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30), st.integers(0, 9))
def test_a_shuffle_keeps_the_rewards(rewards: list[float | None], step: int) -> None:
    scores = Scores(rewards, {"f": rewards})
    moved = shuffled(scores, "seed", step)
    assert sorted(map(repr, moved.rewards)) == sorted(map(repr, rewards))
    assert moved == shuffled(scores, "seed", step)
    assert moved.by_function == scores.by_function


def test_a_shuffled_reward_tells_nothing_of_its_sample() -> None:
    scores = Scores([1.0, 0.0, 0.0, 0.0], {})
    kept = sum(shuffled(scores, step).rewards[0] == 1.0 for step in range(2000))
    assert 400 < kept < 600
