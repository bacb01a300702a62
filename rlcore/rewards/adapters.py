"""Reward functions written for other libraries, called as those call them.

The right answer is the column `answer`, as everywhere here, where a prompt has none under the other library's name.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlcore.errors import RewardError
from rlcore.rewards.calling import STATE
from rlcore.rewards.reward import RewardFunction

Given = Mapping[str, Any]
"""The columns of one completion."""


def verl(compute_score: Callable[..., Any]) -> RewardFunction:
    """A reward function of verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`.

    It is called once a completion, by keyword, as verl 0.9.1 does, and gives a number or {"score": number}; async ones
    run together. `ground_truth` is that of the column `reward_model`, the column `ground_truth`, or `answer`: the first
    there is. `extra_info` is a copy of the column, or {}; what verl itself adds to it (`num_turns`,
    `rollout_reward_scores`) is not there. The reward function raises RewardError.
    """

    async def awaited(completions: Sequence[str], **columns: Any) -> list[Any]:
        calls = [compute_score(**arguments) for arguments in _verl_arguments(completions, columns)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(map(_score, results))

    def called(completions: Sequence[str], **columns: Any) -> list[Any]:
        return [_score(compute_score(**arguments)) for arguments in _verl_arguments(completions, columns)]

    return awaited if inspect.iscoroutinefunction(compute_score) else called


def openrlhf(reward_func: Callable[..., Any]) -> RewardFunction:
    """A reward function of OpenRLHF's `reward_func(queries, prompts, labels)`.

    It is called once a completion, with lists of one, as OpenRLHF's executor of single turns does, and gives a list or
    a tensor of one, or {"rewards": either}. `queries` are prompt and completion, without special tokens; `labels` hold
    the column `label`, or `answer`, or None where there is neither. The reward function raises RewardError.
    """

    def called(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[Any]:
        return [
            _only(reward_func([prompt + text], [prompt], [given.get("label", given.get("answer"))]))
            for prompt, text, given in zip(prompts, completions, _rows(columns), strict=True)
        ]

    return called


ADAPTERS = {"verl": verl, "openrlhf": openrlhf}
"""By the prefix that asks for them."""


def _rows(columns: Mapping[str, Any]) -> Iterator[Given]:
    """The columns of each completion."""
    names = [name for name in columns if name != STATE]
    return (dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True))


def _verl_arguments(completions: Sequence[str], columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "data_source" not in columns:
        raise RewardError("prompts without a column 'data_source', which verl's functions are given", remedy="add it")
    for completion, given in zip(completions, _rows(columns), strict=True):
        yield {
            "data_source": given["data_source"],
            "solution_str": completion,
            "ground_truth": _ground_truth(given),
            "extra_info": dict(given.get("extra_info") or {}),
        }


def _ground_truth(given: Given) -> Any:
    model = given.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    for name in ("ground_truth", "answer"):
        if name in given:
            return given[name]
    raise RewardError(
        "prompts without a ground truth, which verl's functions are given",
        legal="a column reward_model that holds ground_truth, or one that is called ground_truth, or answer",
    )


def _score(result: Any) -> Any:
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        raise RewardError(f"returned {result!r:.60}", legal='a number, or {"score": number}')
    return result["score"]


def _only(result: Any) -> Any:
    """The one reward of a call with one query."""
    rewards: Any = result.get("rewards") if isinstance(result, Mapping) else result
    listed = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if isinstance(listed, list | tuple) and len(listed) == 1:
        return listed[0]
    raise RewardError(
        f"returned {result!r:.60} for one query", legal='a list or tensor of one reward, or {"rewards": either}'
    )
