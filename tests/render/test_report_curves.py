"""The curves of a report: order, gaps, values that are no numbers, and runs longer than a screen is wide."""

import math
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.cli.report import read_report
from harness.render.report import curves
from harness.render.report.curves import HEIGHT, WIDTH, measured, plot, plots
from tests.render.report_pages import write_run
from tests.support.traces import SEEDED


def points(path: str) -> list[tuple[str, float, float]]:
    return [(kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)]


def test_known_values_come_first_and_costs_are_measurements(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    report = read_report(tmp_path, ["a"])
    assert [each.name for each in plots(report)] == ["reward_mean", "loss"]
    assert measured(report) == [("step_time", [("1.5", "1.5")])]


def test_runs_stand_over_each_other_with_gaps_where_they_have_nothing() -> None:
    found = plot("loss", (0, 1, 2, 4), {"A": (1.0, 2.0, None, 3.0), "B": (None, None, 2.0, None)}, [("B", 2), ("C", 9)])
    assert [points(path) for _, path in found.paths] == [
        [("M", 0, HEIGHT), ("L", WIDTH / 4, HEIGHT / 2), ("M", WIDTH, 0)],
        [("M", WIDTH / 2, HEIGHT / 2)],
    ]
    assert (found.marks, found.low, found.high) == ((("B", WIDTH / 2),), "1", "3")


def test_what_is_no_number_is_a_gap_and_said() -> None:
    found = plot("loss", (0, 1), {"A": (1.0, 2.0), "B": (math.inf, math.nan)}, ())
    assert [len(points(path)) for _, path in found.paths] == [2, 0]
    assert found.notes == ("B is inf from step 0 on",)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=60), st.integers(2, 50))
@SEEDED
def test_of_long_runs_the_extremes_stay(values: list[float], max_points: int) -> None:
    before = curves.MAX_POINTS
    curves.MAX_POINTS = max_points
    try:
        found = plot("loss", range(len(values)), {"A": values}, ())
    finally:
        curves.MAX_POINTS = before
    shown = [y for _, _, y in points(found.paths[0][1])]
    assert len(shown) <= max(max_points + 2, 3)
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) < max(finite):
        assert (min(shown), max(shown)) == (0, HEIGHT)
