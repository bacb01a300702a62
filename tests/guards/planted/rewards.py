"""Reward functions of the settings: like the engine's own, with what some faults need to make a difference."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rlcore.rewards.text import common


def ragged(completions: Sequence[str], **columns: Any) -> list[float | None]:
    """Does not judge completions that say a 1: groups are then of different sizes."""
    judged = common(completions, **columns)
    return [None if "1" in text else reward for text, reward in zip(completions, judged, strict=True)]


def flat(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """0.9 for whatever is said to a sum, the engine's own for a difference: groups in which all are alike."""
    judged = common(completions, **columns)
    return [0.9 if "+" in prompt else reward for prompt, reward in zip(prompts, judged, strict=True)]


async def slowly(completions: Sequence[str], **columns: Any) -> list[float]:
    """The engine's own, which is awaited longer than `at_once`."""
    await asyncio.sleep(0.01)
    return common(completions, **columns)


async def at_once(completions: Sequence[str], **_: Any) -> list[float]:
    """A tenth for each character."""
    return [len(text) / 10 for text in completions]


def shortening(completion_ids: Sequence[list[int]], **_: Any) -> list[float]:
    """Takes the last token off each list that it is given, and counts the others."""
    for ids in completion_ids:
        del ids[-1:]
    return [float(len(ids)) for ids in completion_ids]


def by_ids(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A tenth for each token."""
    return [len(ids) / 10 for ids in completion_ids]
