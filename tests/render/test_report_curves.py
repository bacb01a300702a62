"""The curves of a report: order, gaps, values that are no numbers, and runs longer than a screen is wide."""

import math
import re

from harness.render.report_page import HEIGHT, MAX_POINTS, WIDTH, plot


def points(path: str) -> list[tuple[str, float, float]]:
    return [(kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)]


def test_runs_stand_over_each_other_with_gaps_where_they_have_nothing() -> None:
    found = plot({"A": {0: 1.0, 1: 2.0, 4: 3.0}, "B": {2: 2.0}}, [("B", 2), ("C", 9)])
    assert [points(path) for path in found["paths"].values()] == [
        [("M", 0, HEIGHT), ("L", WIDTH / 4, HEIGHT / 2), ("M", WIDTH, 0)],
        [("M", WIDTH / 2, HEIGHT / 2)],
    ]
    assert (found["marks"], found["low"], found["high"]) == ([("B", WIDTH / 2)], "1", "3")


def test_a_value_that_is_no_number_is_a_gap_and_reported() -> None:
    found = plot({"A": {0: 1.0, 1: 2.0}, "B": {0: math.inf, 1: math.nan}}, ())
    assert [len(points(path)) for path in found["paths"].values()] == [2, 0]
    assert found["notes"] == ["B is inf from step 0 on"]


def test_a_long_run_is_thinned_out() -> None:
    found = plot({"A": {step: float(step) for step in range(5 * MAX_POINTS)}}, ())
    assert len(points(found["paths"]["A"])) == MAX_POINTS
