"""Which limit is in force, over any report."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process.supervisor.deadlines import TEST_SLACK_S, Deadlines

INF = math.inf
LIMITS = st.floats(0.1, 1000)
Step = tuple[float, dict[str, Any]]
"""Seconds since the step before, and the report's line."""


def lines() -> st.SearchStrategy[dict[str, Any]]:
    start = st.fixed_dictionaries({"k": st.just("start"), "timeout_s": st.none() | st.just(0) | LIMITS})
    return start | st.sampled_from([{"k": "collected"}, {"k": "end"}, {"k": "finish"}, {"k": "hello"}])


STEPS = st.lists(st.tuples(st.floats(0, 100), lines()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def follow(deadlines: Deadlines, steps: list[Step], now_s: float = 0.0) -> float:
    for pause_s, line in steps:
        now_s += pause_s
        deadlines.observe(line, now_s)
    return now_s


@pytest.mark.parametrize(
    ("steps", "expected_s", "reason"),
    [
        ([], 5, "collect_timeout"),
        ([(1, {"k": "hello"})], 5, "collect_timeout"),
        ([(1, {"k": "collected"})], 60, "timeout"),
        ([(1, {"k": "collected"}), (1, {"k": "start", "timeout_s": 3})], 2 + 3 + TEST_SLACK_S, "test_timeout"),
        ([(1, {"k": "collected"}), (1, {"k": "start", "timeout_s": 300})], 2 + 300 + TEST_SLACK_S, "test_timeout"),
        ([(1, {"k": "collected"}), (1, {"k": "start", "timeout_s": None})], 60, "timeout"),
        ([(1, {"k": "collected"}), (1, {"k": "start", "timeout_s": 3}), (1, {"k": "end"})], 60, "timeout"),
        ([(1, {"k": "start", "timeout_s": 3}), (1, {"k": "finish"})], 60, "timeout"),
    ],
)
def test_the_limit_in_force(steps: list[Step], expected_s: float, reason: str) -> None:
    deadlines = Deadlines(0.0, timeout_s=60, startup_timeout_s=5)
    follow(deadlines, steps)
    assert deadlines.next_s() == expected_s
    assert deadlines.expired(expected_s - 0.001) == ""
    assert deadlines.expired(expected_s) == reason


@given(st.floats(0, 1e6), LIMITS, LIMITS | st.just(INF), STEPS, st.floats(0, 3000))
def test_it_expires_exactly_when_the_next_limit_passes(
    started_s: float, timeout_s: float, startup_s: float, steps: list[Step], later_s: float
) -> None:
    deadlines = Deadlines(started_s, timeout_s, startup_s)
    now_s = follow(deadlines, steps, started_s) + later_s
    reason = deadlines.expired(now_s)
    assert bool(reason) == (now_s >= deadlines.next_s())
    assert reason in ("", "timeout", "test_timeout", "collect_timeout")
    assert not reason or deadlines.expired(now_s + later_s) != "", "time alone takes nothing back"


@given(st.dictionaries(st.sampled_from(["k", "timeout_s", "id"]), JSON | st.sampled_from(["start", "end"])))
def test_no_line_breaks_it(line: dict[str, Any]) -> None:
    deadlines = Deadlines(0.0, 60, INF)
    deadlines.observe(line, 1.0)
    assert deadlines.next_s() == 60 or (line["k"] == "start" and deadlines.next_s() > 1 + TEST_SLACK_S)


@pytest.mark.parametrize("limit", [None, 0, 0.0, -1, math.nan, INF, 10**400, "5", [5], {}])
def test_what_is_no_limit_is_none(limit: Any) -> None:
    deadlines = Deadlines(0.0, 60, INF)
    deadlines.observe({"k": "start", "timeout_s": limit}, 1.0)
    assert deadlines.next_s() == 60
