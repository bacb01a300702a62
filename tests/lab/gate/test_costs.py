"""What runs cost, beside their noise: slow-downs are found, busy moments are not."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.gate.gate import (
    LEAST_SHARE,
    MEMORY,
    RUN,
    SECONDS,
    STEP,
    CostChange,
    Limits,
    RunCosts,
    compare_costs,
    costs_of_run,
)

LIMITS = Limits(slowdown=1.25, memory=1.1)
SEEDED = settings(derandomize=True)
durations = st.floats(0.01, 100)
of_runs = st.lists(durations, min_size=2, max_size=6)


def runs(seconds: list[float], **phases: list[float]) -> list[RunCosts]:
    return [RunCosts(each, {name: values[at] for name, values in phases.items()}) for at, each in enumerate(seconds)]


def whole(base: list[float], head: list[float]) -> CostChange:
    """How the duration of whole runs changed."""
    (found,) = compare_costs(runs(base), runs(head), LIMITS)
    assert (found.kind, found.name) == (SECONDS, RUN)
    return found


def test_a_slow_down_is_found_and_told() -> None:
    found = whole([1.0, 1.02, 0.98], [1.5, 1.53, 1.47])
    assert found.is_too_much
    assert found.ratio == pytest.approx(1.5)
    assert found.noise == pytest.approx(1.4826 * 0.02), "of distances 0, 0.02, 0.02, 0, 0.03, 0.03 the median"


def test_what_is_slower_by_less_than_the_limit_or_than_noise_is_not_too_much() -> None:
    assert not whole([1.0, 1.01], [1.2, 1.21]).is_over_limit
    noisy = whole([1.0, 2.0, 1.5], [2.1, 3.0, 2.2])
    assert noisy.is_over_limit
    assert not noisy.is_too_much


def test_one_busy_run_of_five_hides_nothing_and_two_do() -> None:
    """Their noise is small in the median either way: the order of the runs decides."""
    head = [2.0] * 5
    assert whole([1.0, 1.0, 9.0, 1.0, 1.0], head).is_too_much
    quick = whole([1.0, 1.1, 1.0, 1.1, 1.0], [2.0, 2.1, 1.2, 2.0, 2.1])
    assert (quick.is_over_limit, quick.is_too_much) == (True, False), "it can be as quick as the base"
    two = whole([1.0, 9.0, 9.0, 1.0, 1.0], head)
    assert (two.is_over_limit, two.noise, two.is_too_much) == (True, 0.0, False)
    assert not whole([1.0, 1.0, 1.0, 9.0], [2.0] * 4).is_too_much


def test_of_one_run_nobody_knows_the_noise() -> None:
    found = whole([1.0], [100.0])
    assert (found.is_over_limit, found.is_too_much, found.noise) == (True, False, inf)


@SEEDED
@given(of_runs)
def test_equal_costs_are_never_too_much(costs: list[float]) -> None:
    assert not whole(costs, costs).is_too_much


@SEEDED
@given(st.lists(durations, min_size=4, max_size=20), st.data())
def test_one_slow_step_moves_nothing(steps: list[float], data: st.DataObject) -> None:
    """A machine that is busy for a moment; the first step, which warms up, may take any time."""
    level = [1.0] * len(steps)
    at = data.draw(st.integers(1, len(steps) - 1))
    busy = [*level[:at], 1000.0, *level[at + 1 :]]
    told = [costs_of_run(9.0, [{"seconds/a": each} for each in each_steps]) for each_steps in (level, busy)]
    assert told[0].seconds == told[1].seconds == {"a": 1.0, STEP: 1.0}
    cold = costs_of_run(9.0, [{"seconds/a": each} for each in (steps[0], *level[1:])])
    assert cold.seconds == told[0].seconds


def test_phases_are_summed_to_the_step_and_memory_is_the_peak() -> None:
    steps = [
        {"seconds/a": 9.0, "seconds/b": 9.0, "memory_gb/a": 1.0},
        {"seconds/a": 1.0, "seconds/b": 2.0, "memory_gb/a": 3.0, "loss": 5.0},
        {"evaluation/reward": 1.0},
    ]
    assert costs_of_run(7.0, steps) == RunCosts(7.0, {"a": 1.0, "b": 2.0, STEP: 3.0}, {"a": 3.0})
    assert costs_of_run(7.0, []) == RunCosts(7.0)


def test_small_phases_are_part_of_the_step_and_memory_has_a_limit_of_its_own() -> None:
    small = 0.5 * LEAST_SHARE
    base = [RunCosts(9.0, {STEP: 1.0, "big": 0.9, "small": small}, {"big": 1.0, "small": small})] * 2
    head = [RunCosts(9.0, {STEP: 1.0, "big": 0.9, "small": 1.9 * small}, {"big": 1.15, "small": small})] * 2
    found = {(each.kind, each.name): each for each in compare_costs(base, head, LIMITS)}
    assert found.keys() == {(SECONDS, RUN), (SECONDS, STEP), (SECONDS, "big"), (MEMORY, "big"), (MEMORY, "small")}
    assert found[MEMORY, "big"].is_too_much
    grown = [RunCosts(9.0, {STEP: 1.0, "big": 0.9, "small": 0.2}, {"big": 1.0})] * 2
    assert any(each.name == "small" and each.is_too_much for each in compare_costs(base, grown, LIMITS))


def test_what_one_side_does_not_tell_is_not_compared() -> None:
    base, head = ([RunCosts(1.0, {STEP: 1.0, own: 1.0})] * 2 for own in "ab")
    assert [each.name for each in compare_costs(base, head, LIMITS)] == [RUN, STEP]


def test_no_cost_at_all_has_a_ratio_too() -> None:
    assert [CostChange(SECONDS, RUN, 0.0, head, 0.0, False, False).ratio for head in (0.0, 1.0)] == [1.0, inf]
