"""Rewards of reasonings and their items: functions score what is shown to a user, and a reasoning is worth its items.

    items        0.0  1.0  0.5        by reward functions, each a whole completion: reasoning, forced text, item
    reasoning       0.5               their mean, over the items that have a reward

A completion without items is scored by the functions itself.
"""

from collections.abc import Sequence

from rlcore.environments.branches import by_request, completions_of
from rlcore.environments.trajectory import Trajectory
from rlcore.observability.metrics import mean
from rlcore.rewards.reward import Reward
from rlcore.rewards.score import Scores, score, shuffled


def score_branches(
    rewards: Sequence[Reward],
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    control: tuple[str | int, ...] | None = None,
) -> Scores:
    """Score trajectories in canonical order; without branches, as `score` does.

    `control` are the key parts of a shuffle of all that functions score. Raises as `score` does.
    """
    found = score(rewards, completions_of(trajectories), step=step)
    if control is not None:
        found = shuffled(found, *control)
    return Scores(
        _with_reasonings(found.rewards, trajectories),
        {name: _with_reasonings(column, trajectories) for name, column in found.by_function.items()},
    )


def _with_reasonings(scored: Sequence[float | None], trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Put the mean of its items before them, for each reasoning that has any."""
    at, values = 0, list[float | None]()
    for found in by_request(trajectories):
        num_scored = max(1, len(found) - 1)
        own = scored[at : at + num_scored]
        at += num_scored
        given = [reward for reward in own if reward is not None]
        if len(found) > 1:
            values.append(mean(given) if given else None)
        values += own
    return values
