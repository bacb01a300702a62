"""Rewards of completions: every function's numbers, checked, and their weighted sum.

None means that a function has no reward for a sample. It adds nothing to the sample's total; without a
reward from any function, the total is `None` too, and every mean excludes the sample. Any other value that is not a
finite number is an error: the policy would learn from it.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore.environments.trajectory import Trajectory
from rlcore.errors import InvalidValueError, RewardError
from rlcore.keys import permutation
from rlcore.rewards.calling import GIVEN, STATE, Arguments, call_all
from rlcore.rewards.reward import Reward, TrainerState


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards of a batch, in the order of its completions."""

    rewards: list[float | None]
    """[completions], the totals."""
    by_function: dict[str, list[float | None]]
    """[completions] for each reward's name, without its weight."""

    @property
    def included(self) -> list[bool]:
        """[completions]: whether any function returned a reward."""
        return [reward is not None for reward in self.rewards]


def score(rewards: Sequence[Reward], trajectories: Sequence[Trajectory], *, step: int) -> Scores:
    """Ask every function for every completion.

    Functions are called once, with lists in the order of `trajectories`: the text of each completion, and the columns
    of its prompt. The total is the sum of weight times value over the functions that gave one, without rounding between
    (math.fsum); TRL 1.16 adds alike, in fp32.

    Raises RewardError, which names the function and the sample, for an exception, a timeout, a wrong number of values,
    and a value that is not a finite number; InvalidValueError for two rewards of one name, for prompts that differ in
    their columns, and for a trajectory of several assistant turns.
    """
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names) or not names:
        raise InvalidValueError(f"rewards {names}", legal="at least one, each with a name of its own")
    if not trajectories:
        return Scores([], {name: [] for name in names})
    returned = call_all(rewards, _arguments(trajectories, step))
    values = [_checked(reward, each, trajectories) for reward, each in zip(rewards, returned, strict=True)]
    totals = [_total(rewards, column, index) for index, column in enumerate(zip(*values, strict=True))]
    return Scores(totals, dict(zip(names, values, strict=True)))


def shuffled(scores: Scores, *parts: str | int) -> Scores:
    """The totals in the order of their keys: a control, which nothing can be learned from.

    Some may stay where they are. A shuffle in which none does would, on average, punish a sample for its own reward.
    """
    order = permutation(len(scores.rewards), "shuffled rewards", *parts)
    return replace(scores, rewards=[scores.rewards[index] for index in order])


def check_columns(columns: Iterable[str]) -> None:
    """Refuse columns of prompts that would hide what functions are given; raises InvalidValueError."""
    if taken := sorted({*columns} & {*GIVEN, STATE}):
        raise InvalidValueError(f"a column {taken[0]!r}", legal=f"any but {', '.join((*GIVEN, STATE))}")


def _arguments(trajectories: Sequence[Trajectory], step: int) -> Arguments:
    prompts = [each.request.prompt for each in trajectories]
    names = list(prompts[0].columns)
    check_columns(names)
    for prompt in prompts:
        if prompt.columns.keys() != prompts[0].columns.keys():
            raise InvalidValueError(
                f"prompt {prompt.id} has columns {sorted(prompt.columns)}", legal=f"{sorted(names)}, as the others"
            )
    return Arguments(
        {
            "prompts": [prompt.text for prompt in prompts],
            "completions": [each.completion_text for each in trajectories],
            "completion_ids": [list(each.completion_tokens) for each in trajectories],
            "stop_reasons": [each.stop_reason.value for each in trajectories],
            **{name: [prompt.columns[name] for prompt in prompts] for name in names},
        },
        TrainerState(step),
        len(trajectories),
    )


def _checked(reward: Reward, returned: Any, trajectories: Sequence[Trajectory]) -> list[float | None]:
    """One number or None a completion; a tensor or an array is taken for the list it holds."""
    listed = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(listed, list | tuple):
        raise RewardError(
            f"reward function {reward.name} returned {returned!r:.60}",
            legal="a list of one number or None a completion",
        )
    if len(listed) != len(trajectories):
        raise RewardError(
            f"reward function {reward.name} returned {len(listed)} values for {len(trajectories)} completions",
            legal="one for each, in their order",
            remedy="return None for a completion without a reward",
        )
    return [_number(reward, value, index, trajectories[index]) for index, value in enumerate(listed)]


def _number(reward: Reward, value: Any, index: int, trajectory: Trajectory) -> float | None:
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if number is None:
        return None
    if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        request = trajectory.request
        raise RewardError(
            f"reward function {reward.name} gave {value!r:.60} for sample {index} "
            f"(completion {request.sample_index} of prompt {request.prompt.id}: {trajectory.completion_text!r:.60})",
            legal="a finite number, or None for a completion without a reward",
        )
    return float(number)


def _total(rewards: Sequence[Reward], values: Sequence[float | None], index: int) -> float | None:
    """Of one sample."""
    given = [(reward.weight, value) for reward, value in zip(rewards, values, strict=True) if value is not None]
    if not given:
        return None
    try:
        total = math.fsum(weight * value for weight, value in given)
    except (OverflowError, ValueError):  # on the way, and of opposite infinities
        total = math.inf
    if not math.isfinite(total):
        raise RewardError(f"the rewards {values} of sample {index} have no finite sum", remedy="make them smaller")
    return total
