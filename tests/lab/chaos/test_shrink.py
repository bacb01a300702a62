"""Shrinking against whatever fails: a smallest part is found, and only what was seen to fail is called a cause."""

from collections.abc import Callable, Generator
from math import log2
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.chaos.search import ddmin, simplify

T = TypeVar("T")
SEEDED = settings(derandomize=True, max_examples=5 * settings().max_examples)
items = st.integers(1, 12).map(lambda count: tuple(range(count)))


def driven(search: Generator[T, bool, T], fails: Callable[[T], bool]) -> tuple[T, list[tuple[T, bool]]]:
    """The result of a search, and everything it asked with its answer."""
    asked = []
    try:
        question = next(search)
        while True:
            answer = fails(question)
            asked.append((question, answer))
            question = search.send(answer)
    except StopIteration as end:
        return end.value, asked


@SEEDED
@given(st.data(), items)
def test_causes_that_act_together_are_found_exactly(data: st.DataObject, whole: tuple[int, ...]) -> None:
    cause = data.draw(st.sets(st.sampled_from(whole), min_size=1))
    found, _ = driven(ddmin(whole), lambda part: cause <= set(part))
    assert set(found) == cause
    assert found == tuple(sorted(found)), "in their order"


@pytest.mark.full
@SEEDED
@given(st.data(), items)
def test_what_fails_in_any_way_is_shrunk_to_where_nothing_can_be_left_out(
    data: st.DataObject, whole: tuple[int, ...]
) -> None:
    failing = data.draw(st.sets(st.frozensets(st.sampled_from(whole), min_size=1), max_size=30)) | {frozenset(whole)}
    found, _ = driven(ddmin(whole), lambda part: frozenset(part) in failing)
    assert frozenset(found) in failing
    if len(found) > 1:
        assert all(frozenset(found) - {each} not in failing for each in found)


@SEEDED
@given(items, st.randoms(use_true_random=False), st.floats(0, 1))
def test_what_comes_and_goes_is_shrunk_to_something_that_was_seen_to_fail(
    whole: tuple[int, ...], random: Random, share: float
) -> None:
    found, asked = driven(ddmin(whole), lambda part: random.random() < share)
    assert found == whole or (found, True) in asked
    assert len({question for question, _ in asked}) == len(asked), "nothing is asked twice"


@SEEDED
@given(st.data(), items)
def test_a_single_cause_takes_about_two_questions_for_each_halving(data: st.DataObject, whole: tuple[int, ...]) -> None:
    cause = data.draw(st.sampled_from(whole))
    _, asked = driven(ddmin(whole), lambda part: cause in part)
    assert len(asked) <= 2 * log2(len(whole)) + 2


values = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), min_size=1)


@SEEDED
@given(values, st.data())
def test_each_value_becomes_the_simplest_that_fails(whole: dict[str, int], data: st.DataObject) -> None:
    least = {name: data.draw(st.integers(0, value)) for name, value in whole.items()}

    def fails(part: dict[str, Any]) -> bool:
        return all(part[name] >= least[name] for name in whole)

    found, _ = driven(simplify(whole, lambda name, value: range(value)), fails)
    assert found == least
