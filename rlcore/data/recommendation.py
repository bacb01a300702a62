"""A recommender's task, made here: histories of a tiny catalogue's items, and the item to recommend next.

Items have semantic ids of three codes, from coarse to fine: "Bc2" is item 2 of shelf c of department B. A prompt is a
history of ids; its right completion names the shelf, ends the reasoning, and gives the id of an item.

    "Ab1Bc0Bd3>"   is   "Bd;:Bd3"        reasoning "Bd;", forced ":", item "Bd3"

The department is the one with most items in the history, the latest of those that tie. The shelf is that of the last
item of this department. The item is the shelf's favourite, which the catalogue alone says.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from rlcore.seeds import permutation

DEPARTMENTS, SHELVES, NUMBERS = "ABCD", "abcd", "0123"
ASKS, ENDS_REASONING, BEGINS_ITEM = ">", ";", ":"
ALPHABET = DEPARTMENTS + SHELVES + NUMBERS + ASKS + ENDS_REASONING + BEGINS_ITEM
NUM_ITEMS = 48
"""Items of the catalogue; the other ids of four departments, four shelves and four numbers belong to no item."""


@cache
def catalogue() -> tuple[str, ...]:
    """Return the ids of all items: the same on any machine, at least one on each shelf, favourites first."""
    ids = [department + shelf + number for department in DEPARTMENTS for shelf in SHELVES for number in NUMBERS]
    drawn = [ids[at] for at in permutation(len(ids), "catalogue")]
    shelves = sorted({each[:2] for each in drawn})
    favourites = [next(each for each in drawn if each[:2] == shelf) for shelf in shelves]
    others = [each for each in drawn if each not in favourites]
    return (*favourites, *others[: NUM_ITEMS - len(favourites)])


def favourite(shelf: str) -> str:
    """Return the id of a shelf's favourite."""
    return next(each for each in catalogue() if each.startswith(shelf))


def history(number: int, length: int) -> list[str]:
    """Return the ids of the `number`-th history of this length."""
    items = []
    for _ in range(length):
        number, item = divmod(number, NUM_ITEMS)
        items.append(catalogue()[item])
    return items


def shelf_of(items: Sequence[str]) -> str:
    """Return the shelf whose favourite is right after a history."""
    departments = [item[0] for item in items]
    favoured = max(range(len(items)), key=lambda at: (departments.count(departments[at]), at))
    return items[favoured][:2]


def completion(items: Sequence[str]) -> str:
    """Return the right completion of a history: reasoning, forced text and item."""
    shelf = shelf_of(items)
    return f"{shelf}{ENDS_REASONING}{BEGINS_ITEM}{favourite(shelf)}"


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
