"""Metrics do not depend on an order by a bit, and ranks that report something else are named."""

import math
import random
import statistics
import struct
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.errors import InvalidValueError
from rlcore.observability.metrics import How, mean, merge, of_completions

PROPERTY = settings(max_examples=2 * settings().max_examples)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(-1e6, 1e6)
HOW: dict[str, How] = {"loss": "mean", "tokens": "sum", "low": "min", "high": "max"}


def bits(value: float) -> object:
    """All that can be seen of a number; one NaN is like another."""
    if isinstance(value, int):
        return value
    return struct.pack("d", math.nan if math.isnan(value) else value)


# ---------------------------------------------------------------------------------------------------------------- mean


@PROPERTY
@given(st.lists(FLOATS, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_values_changes_no_bit(values: list[float], draw: random.Random) -> None:
    shuffled = draw.sample(values, len(values))
    assert bits(mean(values)) == bits(mean(shuffled))


def test_means_at_the_edges() -> None:
    assert [mean([1, 2]), mean([True, False]), mean([1e16, 1.0, -1e16, 1.0])] == [1.5, 0.5, 0.5]
    assert mean([1e308, 1e308, -1e308]) == pytest.approx(1e308 / 3)
    assert mean([1e308] * 3) == pytest.approx(1e308)
    assert mean([math.inf, 1.0]) == math.inf
    assert math.isnan(mean([math.inf, -math.inf])) and math.isnan(mean([math.nan, 1.0]))
    with pytest.raises(InvalidValueError, match="a mean of no value"):
        mean([])


# --------------------------------------------------------------------------------------------------------------- merge


def test_what_is_not_finite_travels() -> None:
    how: dict[str, How] = {"mean": "mean", "sum": "sum", "min": "min", "max": "max"}
    finite = dict.fromkeys(how, 1.0)
    for value in (math.nan, math.inf):
        for merged in merge([finite, finite | dict.fromkeys(how, value)], how | {"min": "max"}).values():
            assert bits(merged) == bits(value)
    assert math.isnan(merge([{"min": 1.0}, {"min": math.nan}], {"min": "min"})["min"])
    assert math.isnan(merge([{"loss": math.nan, "n": 0}], {"loss": "mean", "n": "sum"}, {"loss": "n"})["loss"])
    assert merge([{"sum": 1e308}] * 2, {"sum": "sum"}) == {"sum": math.inf}
    large = [{"x": 1e308, "n": 3}, {"x": -1e308, "n": 3}]
    assert merge(large, {"x": "mean", "n": "sum"}, {"x": "n"}) == {"x": 0.0, "n": 6}
    assert bits(merge([{"n": 2**53 + 1}] * 2, {"n": "sum"})["n"]) == 2**54 + 2, "counts stay whole"


@PROPERTY
@given(st.lists(st.tuples(FLOATS, st.integers(0, 99), FLOATS, FLOATS), min_size=1, max_size=8), st.data())
def test_the_order_of_ranks_changes_no_bit(rows: list[tuple[float, int, float, float]], data: st.DataObject) -> None:
    by_rank = [dict(zip(HOW, row, strict=True)) for row in rows]
    weights = data.draw(st.sampled_from([{}, {"loss": "tokens"}]))
    merged = merge(by_rank, HOW, weights)
    other = merge(data.draw(st.permutations(by_rank)), HOW, weights)
    assert {name: bits(value) for name, value in merged.items()} == {name: bits(other[name]) for name in other}
    assert list(merged) == list(HOW)


@PROPERTY
@given(st.lists(FINITE, min_size=1, max_size=30), st.sets(st.integers(1, 29), max_size=6))
def test_ranks_together_say_what_one_would(values: list[float], cuts: set[int]) -> None:
    """However the values are divided; a rank without any says NaN of its mean, and does not count."""
    ends = [0, *sorted(cuts), 30]
    parts = [values[begin:end] for begin, end in pairwise(ends)]
    by_rank = [
        {
            "loss": mean(part) if part else math.nan,
            "tokens": len(part),
            "low": min(part, default=math.inf),
            "high": max(part, default=-math.inf),
        }
        for part in parts
    ]
    merged = merge(by_rank, HOW, {"loss": "tokens"})
    assert merged["loss"] == pytest.approx(mean(values), rel=1e-9, abs=1e-6)
    assert (merged["tokens"], merged["low"], merged["high"]) == (len(values), min(values), max(values))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"loss": 1.0}, "rank 1 lacks the metric 'tokens'"),
        ({"loss": 1.0, "tokens": 2, "los": 3.0}, "rank 1 has an unexpected metric 'los'"),
        ({"loss": 1.0, "tokens": 2.0}, "metric 'tokens' of rank 1 is the float 2.0\n  legal:  int"),
        ({"loss": 1, "tokens": 2}, "metric 'loss' of rank 1 is the int 1\n  legal:  float"),
        ({"loss": "1.0", "tokens": 2}, "metric 'loss' of rank 1 is the str '1.0'"),
        ({"loss": None, "tokens": 2}, "metric 'loss' of rank 1 is the NoneType None"),
        ({"loss": 1.0, "tokens": True}, "metric 'tokens' of rank 1 is the bool True"),
        ({"loss": 1.0, "tokens": -1}, "the weight 'tokens' of rank 1 is -1"),
    ],
)
def test_a_rank_that_differs_is_named(broken: dict[str, float], told: str) -> None:
    whole = {"loss": 1.0, "tokens": 2}
    how: dict[str, How] = {"loss": "mean", "tokens": "sum"}
    with pytest.raises(InvalidValueError) as caught:
        merge([whole, broken, whole], how, {"loss": "tokens"})
    assert told in str(caught.value)


def test_what_cannot_be_merged() -> None:
    with pytest.raises(InvalidValueError, match="of no rank"):
        merge([], {})
    with pytest.raises(InvalidValueError, match="'loss' merged by 'median'"):
        merge([{"loss": 1.0}], {"loss": "median"})  # type: ignore[dict-item]
    with pytest.raises(InvalidValueError, match="'loss' weighted by 'count'"):
        merge([{"loss": 1.0}], {"loss": "mean"}, {"loss": "count"})
    with pytest.raises(InvalidValueError, match="'loss' weighted by 'loss'"):
        merge([{"loss": 1.0}], {"loss": "sum"}, {"loss": "loss"})
    with pytest.raises(InvalidValueError, match="'loss' of rank 0 is the bool True"):
        merge([{"loss": True}], {"loss": "sum"})
    assert merge([{}, {}], {}) == {}


# --------------------------------------------------------------------------------------------------------- completions


def test_completions_by_hand() -> None:
    told = of_completions(
        [2, 4, 6], [False, False, True], [1.0, None, 0.0], {"exact": [1.0, None, 0.0], "f": [None] * 3}
    )
    assert math.isnan(told.pop("rewards/f"))
    assert told == {
        "completion_length": 4.0,
        "completion_length_min": 2,
        "completion_length_max": 6,
        "truncated": pytest.approx(1 / 3),
        "unjudged": 1,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "rewards/exact": 0.5,
    }


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 99), st.booleans(), st.none() | FLOATS), min_size=1, max_size=20), st.data())
def test_the_order_of_completions_changes_no_bit(
    rows: list[tuple[int, bool, float | None]], data: st.DataObject
) -> None:
    def told(order: list[tuple[int, bool, float | None]]) -> dict[str, object]:
        rewards = [reward for _, _, reward in order]
        found = of_completions([n for n, _, _ in order], [b for _, b, _ in order], rewards, {"f": rewards})
        return {name: bits(value) for name, value in found.items()}

    assert told(rows) == told(data.draw(st.permutations(rows)))


def test_equal_rewards_have_no_spread() -> None:
    """By the plain formula 0.9 eight times has 1e-16 of it."""
    for reward in (0.9, 5.3, 0.1):
        assert of_completions([1] * 7, [False] * 7, [reward] * 7, {})["reward_std"] == 0.0
    assert of_completions([1] * 3, [False] * 3, [1.0, 2.0, 4.0], {})["reward_std"] == statistics.pstdev([1.0, 2.0, 4.0])
    assert math.isnan(of_completions([1], [False], [math.nan], {})["reward_std"])


def test_without_torch() -> None:
    code = "import sys, rlcore.observability.metrics; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_completions_that_do_not_belong_together() -> None:
    with pytest.raises(InvalidValueError, match="1 rewards\n  legal:  2, one a completion"):
        of_completions([1, 1], [False, False], [1.0], {})
    with pytest.raises(InvalidValueError, match="3 rewards of 'f'"):
        of_completions([1, 1], [False, False], [1.0, 1.0], {"f": [0.0] * 3})
    with pytest.raises(InvalidValueError, match="no value"):
        of_completions([], [], [], {})
