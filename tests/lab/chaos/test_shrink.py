"""Shrinking against whatever fails: a smallest part is found, and only what was seen to fail is called a cause."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.chaos.search import ddmin

T = TypeVar("T")
SEEDED = settings(derandomize=True, max_examples=5 * settings().max_examples)
items = st.integers(1, 12).map(lambda count: tuple(range(count)))


def driven(whole: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[tuple[T, ...], list[Any]]:
    """The result of ddmin, and everything it asked with its answer."""
    asked = []

    async def answer(part: tuple[T, ...]) -> bool:
        asked.append((part, fails(part)))
        return asked[-1][1]

    return asyncio.run(ddmin(whole, answer)), asked


@SEEDED
@given(st.data(), items)
def test_causes_that_act_together_are_found_exactly(data: st.DataObject, whole: tuple[int, ...]) -> None:
    cause = data.draw(st.sets(st.sampled_from(whole), min_size=1))
    found, _ = driven(whole, lambda part: cause <= set(part))
    assert set(found) == cause
    assert found == tuple(sorted(found)), "in their order"


@pytest.mark.full
@SEEDED
@given(st.data(), items)
def test_what_fails_in_any_way_is_shrunk_to_where_nothing_can_be_left_out(
    data: st.DataObject, whole: tuple[int, ...]
) -> None:
    failing = data.draw(st.sets(st.frozensets(st.sampled_from(whole), min_size=1), max_size=30)) | {frozenset(whole)}
    found, _ = driven(whole, lambda part: frozenset(part) in failing)
    assert frozenset(found) in failing
    if len(found) > 1:
        assert all(frozenset(found) - {each} not in failing for each in found)


@SEEDED
@given(items, st.randoms(use_true_random=False), st.floats(0, 1))
def test_what_comes_and_goes_is_shrunk_to_something_that_was_seen_to_fail(
    whole: tuple[int, ...], random: Random, share: float
) -> None:
    found, asked = driven(whole, lambda part: random.random() < share)
    assert found == whole or (found, True) in asked
    assert len({question for question, _ in asked}) == len(asked), "nothing is asked twice"
