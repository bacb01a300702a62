"""Items are scored by reward functions, and reasonings are worth the mean of their items."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rlcore.data.rewards import Reward
from rlcore.data.scoring import score, score_branches
from rlcore.data.trajectory import Item, Trajectory, branch
from rlcore.errors import RewardError
from rlcore.types import BeamParams, StopReason
from tests.rlcore.data.completions import completion, completions

BEAMS = BeamParams(3, 4, forced=(1,))


def rollout(text: str, items: Sequence[str]) -> list[Trajectory]:
    """A reasoning and its items."""
    reasoning = completion(text, sample_index=len(text))
    found = [Item(tuple(map(ord, item)), (-1.0,) * len(item), item, StopReason.LENGTH) for item in items]
    return [reasoning, *(branch(reasoning, each, BEAMS, forced_text="|") for each in found)]


def by_table(values: Mapping[str, float | None], seen: list[str] | None = None) -> tuple[Reward, ...]:
    """A reward function that knows each completion's reward."""

    def function(completions: Sequence[str], completion_ids: Sequence[list[int]], **_: Any) -> list[float | None]:
        if seen is not None:
            seen.extend(completions)
        assert len(completion_ids) == len(completions)
        return [values[text] for text in completions]

    return (Reward("table", function),)


def test_a_reasoning_is_worth_the_mean_of_its_items_and_one_without_items_itself() -> None:
    seen: list[str] = []
    trajectories = [*rollout("a", ["x", "y", "z"]), *rollout("long", []), *rollout("bc", ["x"])]
    values = {"a|x": 1.0, "a|y": 0.0, "a|z": 0.5, "long": -1.0, "bc|x": 0.25}
    scores = score_branches(by_table(values, seen), trajectories, step=0)
    assert seen == [*values], "functions see whole completions, and no reasoning that has items"
    assert scores.rewards == [0.5, 1.0, 0.0, 0.5, -1.0, 0.25, 0.25]
    assert scores.by_function == {"table": scores.rewards}


def test_items_without_a_reward_count_in_no_mean() -> None:
    values = {"a|x": 1.0, "a|y": None, "b|x": None}
    trajectories = [*rollout("a", ["x", "y"]), *rollout("b", ["x"])]
    scores = score_branches(by_table(values), trajectories, step=0)
    assert scores.rewards == [1.0, 1.0, None, None, None]
    assert scores.included == [True, True, False, False, False]


def test_without_branches_it_is_score() -> None:
    trajectories = completions(["x", "y"])
    rewards = by_table({"x": 0.1, "y": None})
    assert score_branches(rewards, trajectories, step=0) == score(rewards, trajectories, step=0)


def test_a_control_shuffles_what_functions_score() -> None:
    trajectories = [each for at in range(6) for each in rollout("r" * (at + 1), ["x", "y"])]
    leaves = [each.completion_text for each in trajectories if each.is_branch]
    rewards = by_table({text: float(at) for at, text in enumerate(leaves)})
    plain = score_branches(rewards, trajectories, step=0).rewards
    moved = score_branches(rewards, trajectories, step=0, control=(1, 2)).rewards
    own = [at for at, each in enumerate(trajectories) if each.is_branch]
    assert sorted(moved[at] or 0.0 for at in own) == sorted(plain[at] or 0.0 for at in own)
    assert moved != plain
    for first in range(0, len(moved), 3):
        one, two = moved[first + 1], moved[first + 2]
        assert one is not None and two is not None
        assert moved[first] == (one + two) / 2, "a reasoning is worth what its items were given"


def test_errors_name_the_function_and_the_item() -> None:
    with pytest.raises(RewardError, match=r"table gave nan for sample 1 .*a\|y"):
        score_branches(by_table({"a|x": 1.0, "a|y": float("nan")}), rollout("a", ["x", "y"]), step=0)
