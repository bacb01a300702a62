"""The tiny catalogue, its histories and their right items; and what an item is worth."""

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.data.recommendation import (
    DEPARTMENTS,
    NUM_ITEMS,
    NUMBERS,
    SHELVES,
    catalogue,
    completion,
    favourite,
    recommended,
    shelf_of,
)
from tests.support.recorded_programs import run

histories = st.lists(st.sampled_from(catalogue()), min_size=1, max_size=6)


def test_the_catalogue_has_items_on_every_shelf_and_ids_of_none() -> None:
    items = catalogue()
    assert len(set(items)) == len(items) == NUM_ITEMS < len(DEPARTMENTS) * len(SHELVES) * len(NUMBERS)
    assert {item[:2] for item in items} == {department + shelf for department in DEPARTMENTS for shelf in SHELVES}
    assert all(item[0] in DEPARTMENTS and item[1] in SHELVES and item[2] in NUMBERS for item in items)
    assert len({favourite(item[:2])[2] for item in items}) > 1, "which is not the same place on all shelves"


def test_the_catalogue_is_the_same_in_any_process() -> None:
    code = "from rlcore.data.recommendation import catalogue; print(','.join(catalogue()))"
    for seed in ("1", "77"):
        done = run(sys.executable, "-c", code, env={"PYTHONHASHSEED": seed})
        assert done.output.strip() == ",".join(catalogue()), done.errors


@given(histories)
def test_the_shelf_is_the_last_one_of_the_favoured_department(items: list[str]) -> None:
    counts = Counter(item[0] for item in items)
    favoured = [department for department, count in counts.items() if count == max(counts.values())]
    latest = next(item for item in reversed(items) if item[0] in favoured)
    assert shelf_of(items) == latest[:2]
    shelf = shelf_of(items)
    assert completion(items) == f"{shelf};:{favourite(shelf)}" and favourite(shelf).startswith(shelf)


RIGHT = completion(["Aa0"])
ITEM = favourite("Aa")
ELSEWHERE = next(item for item in catalogue() if item[0] != "A")
BESIDE = next(item for item in catalogue() if item[0] == "A" and item[1] != "a")
MISSING = next(f"Aa{number}" for number in NUMBERS if f"Aa{number}" not in catalogue())


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (f"x;:{ITEM}", 1.0),
        (f"x;:{BESIDE}", 1 / 3),
        (f"x;:{ELSEWHERE}", 0.0),
        (f"x;:{MISSING}", 0.0),
        (f"x;:{ITEM}{ITEM}", 0.0),
        (f"x;:{ITEM[:2]}", 0.0),
        (f"Aa:{ITEM}", 0.0),
        (f"x{ITEM};", 0.0),
        (f"x;:;:{ITEM}", 0.0),
        ("", 0.0),
    ],
)
def test_an_item_is_worth_its_leading_codes_and_a_reasoning_without_one_nothing(text: str, reward: float) -> None:
    assert recommended([text], [RIGHT]) == [pytest.approx(reward)]


def test_items_of_one_shelf_have_two_codes_in_common() -> None:
    shelf, items = next((shelf, items) for shelf, items in _shelves().items() if len(items) > 1)
    other = next(item for item in items if item != favourite(shelf))
    assert recommended([f";:{other}"], [f"{shelf};:{favourite(shelf)}"]) == [pytest.approx(2 / 3)]


def _shelves() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in catalogue():
        found.setdefault(item[:2], []).append(item)
    return found
