"""Values of factors: never the usual one, always a legal one, and simpler ones nearer to it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.experiments.perturbation_values import MAX_SIMPLER, Choice, Span, is_same

SEEDED = settings(derandomize=True)
numbers = st.integers(0, 2**128)
spans = st.tuples(st.integers(-20, 20), st.integers(1, 30)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
options = st.lists(st.integers(0, 9) | st.booleans() | st.text("ab", max_size=2) | st.none(), min_size=2, max_size=6)
choices = options.map(lambda found: Choice(tuple(found)))
usual_ones = st.none() | st.integers(-30, 60)


@SEEDED
@given(spans | choices, numbers, usual_ones)
def test_a_drawn_value_is_legal_and_not_the_usual_one(values: Span | Choice, number: int, usual: Any) -> None:
    drawn = values.drawn(number, usual)
    assert drawn in values
    if isinstance(values, Span) or any(not is_same(each, usual) for each in values.options):
        assert not is_same(drawn, usual)


@SEEDED
@given(spans, st.data(), usual_ones)
def test_simpler_values_of_a_range_lie_nearer_to_the_usual_one(span: Span, data: st.DataObject, usual: Any) -> None:
    value = data.draw(st.integers(span.low, span.high))
    middle = span.low - 1 if usual is None else usual
    found = list(span.simpler(value, usual))
    distances = [abs(each - middle) for each in found]
    assert all(each in span and not is_same(each, usual) for each in found)
    assert distances == sorted(set(distances)) and all(each < abs(value - middle) for each in distances)
    assert len(found) <= MAX_SIMPLER


def test_simpler_values_are_tried_from_the_nearest_on() -> None:
    assert list(Span(1, 100).simpler(90, 1)) == [2, 3, 5, 9]
    assert list(Span(1, 100).simpler(3, 64)) == [63, 62, 60, 56]
    assert list(Span(1, 8).simpler(3, None)) == [1, 2]
    assert list(Span(1, 8).simpler(2, 1)) == []
    assert list(Choice((24, 8, 5, 7)).simpler(7, 24)) == [8, 5]
    assert list(Choice((24, 8)).simpler(100, 24)) == []


def test_values_of_other_types_are_others() -> None:
    assert not is_same(1, True)
    assert not is_same(1, 1.0)
    assert True not in Choice((1, 2))
    assert True not in Span(0, 2)
    assert Choice((0, False)).drawn(0, 0) is False
