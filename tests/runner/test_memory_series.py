"""Thinned series of GPU memory: what is recorded of samples, and what is drawn of a record."""

from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.memory_series import CHANGE_BYTES, INTERVAL_S, Point, SeriesThinner, maxima, peak

GB = 10**9
AMOUNTS = st.one_of(st.none(), st.integers(0, 143 * GB), st.integers(0, 3 * CHANGE_BYTES))
SAMPLES = st.lists(st.tuples(st.floats(0.01, 3.0), AMOUNTS), min_size=1, max_size=80)
POINTS = st.lists(st.tuples(st.floats(0, 50, allow_subnormal=False), AMOUNTS), min_size=1, max_size=80).map(
    lambda points: sorted(points, key=lambda point: point[0])
)


def in_use(points: list[Point] | tuple[Point, ...], t: float) -> int | None:
    at = bisect_right([each for each, _ in points], t)
    return points[at - 1][1] if at else None


def recorded(samples: list[tuple[float, int | None]]) -> tuple[list[Point], list[Point], float]:
    """The samples at their times, what was recorded of them before the end, and the time of the end."""
    thinner, taken, found, t = SeriesThinner(), [], [], 0.0
    for step_s, amount in samples:
        t += step_s
        taken.append((t, amount))
        found += [(t, value) for value in thinner.take(t, {"a": amount}).values()]
    pending, ended = thinner.end(["a"])
    found += [(t, value) for value in pending.values()]
    assert set(ended.values()) <= {None}
    assert bool(ended) == (bool(found) and found[-1][1] is not None), "what is known ends with the lease"
    return taken, found, t


@given(SAMPLES)
def test_recorded_values_keep_the_peak_and_an_interval(samples: list[tuple[float, int | None]]) -> None:
    taken, found, end_s = recorded(samples)
    most, most_found = peak(taken), peak(found)
    assert (most is None) == (most_found is None)
    if most is not None and most_found is not None:
        assert most - CHANGE_BYTES <= most_found <= most
    within = [point for point in found if point[0] < end_s]
    assert all(later[0] - earlier[0] >= INTERVAL_S for earlier, later in pairwise(within))
    for (_, before), (_, after) in pairwise(found):
        assert (before is None) != (after is None) or abs((before or 0) - (after or 0)) > CHANGE_BYTES


@given(SAMPLES)
def test_a_sample_after_a_quiet_interval_is_within_the_change_of_what_is_recorded(
    samples: list[tuple[float, int | None]],
) -> None:
    taken, found, _ = recorded([(step_s + INTERVAL_S, amount) for step_s, amount in samples])
    for t, amount in taken:
        shown = in_use(found, t)
        assert (shown is None) == (amount is None)
        assert shown is None or amount is None or abs(shown - amount) <= CHANGE_BYTES


@pytest.mark.full
def test_a_day_of_changes_records_some_thousand_values() -> None:
    thinner, num = SeriesThinner(), 0
    for step in range(24 * 3600 * 4):
        num += len(thinner.take(step / 4, {"a": (step % 7) * GB}))
    assert 1000 < num < 6500


def test_each_gpu_has_its_own_values() -> None:
    thinner = SeriesThinner()
    assert thinner.take(0.0, {"a": GB, "b": None}) == {"a": GB}
    assert thinner.take(0.5, {"a": 5 * GB, "b": 2 * GB}) == {"b": 2 * GB}
    assert thinner.take(1.0, {"a": GB, "b": 2 * GB}) == {"a": 5 * GB}, "the peak of the interval"
    assert thinner.take(2.0, {"a": GB, "b": 2 * GB + CHANGE_BYTES}) == {"a": GB}
    assert thinner.end(["a", "c"]) == ({}, {"a": None})
    assert thinner.take(2.1, {"a": 3 * GB}) == {"a": 3 * GB}, "a new lease"
    thinner.take(2.2, {"a": 4 * GB})
    assert thinner.end(["a"]) == ({"a": 4 * GB}, {"a": None})


@given(POINTS, st.integers(3, 40))
def test_maxima_are_few_and_keep_every_peak(points: list[Point], num: int) -> None:
    drawn = maxima(points, num)
    assert len(drawn) <= num
    assert peak(drawn) == peak(points)
    assert [t for t, _ in drawn] == sorted(t for t, _ in drawn)
    assert drawn[0][0] == points[0][0]
    assert drawn[-1] == points[-1], "what is in use in the end"
    if len(points) <= num:
        assert drawn == tuple(points)
    for (t, value), (until, _) in pairwise(points):
        if value is not None and until > t:
            shown = in_use(drawn, (t + until) / 2)
            assert shown is not None and shown >= value


def test_a_peak_among_many_samples_of_an_interval_is_recorded() -> None:
    _, found, _ = recorded([(1.0, 0), (0.25, 9 * GB), (0.25, GB), (0.25, GB), (0.25, GB), (1.0, GB)])
    assert found[:3] == [(1.0, 0), (2.0, 9 * GB), (3.0, GB)]
