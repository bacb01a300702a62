"""Rewards of items with semantic ids, from coarse codes to fine ones."""

from collections.abc import Sequence
from typing import Any

from rlcore.tasks.recommendation import BEGINS_ITEM, ENDS_REASONING, catalogue


def recommended(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Return the share of leading codes that the item has in common with the right one; 0 without an item.

    A reasoning without an end leads to no item, whatever it says; an id that the catalogue lacks is not an item either.
    """
    return [_leading(_item(text), _item(right)) for text, right in zip(completions, answer, strict=True)]


def _item(completion: str) -> str:
    """Return the id after the first end of a reasoning; empty without one."""
    item = completion.partition(ENDS_REASONING + BEGINS_ITEM)[2]
    return item if item in catalogue() else ""


def _leading(item: str, right: str) -> float:
    agrees = [a == b for a, b in zip(item, right, strict=False)]
    return (agrees.index(False) if False in agrees else len(agrees)) / len(right)
