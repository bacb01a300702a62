"""The curves of a report: order, gaps, values that are no numbers, and runs longer than a screen is wide."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.cli.commands.report import read_report
from harness.render.report import curves
from harness.render.report.curves import panels
from harness.render.report.curves_data import curves_data
from harness.trace.curve import CurvePoint
from harness.trace.values import Float
from tests.render.report_pages import write_run
from tests.support.traces import SEEDED


def point(step: int, **values: float) -> CurvePoint:
    return CurvePoint(step, {name: Float.of(value, "f64") for name, value in values.items()}, "")


def test_known_values_come_first_and_costs_last() -> None:
    found = panels([[point(0, step_time=1, own=2, loss=3, reward_mean=4)], [point(0, memory_gb=5)]])
    assert [panel.name for panel in found] == ["reward_mean", "loss", "own", "step_time", "memory_gb"]
    assert [panel.is_cost for panel in found] == [False, False, False, True, True]


def test_runs_stand_over_each_other_with_gaps_where_they_have_nothing() -> None:
    (found,) = panels([[point(0, loss=1), point(2, loss=3)], [point(2, loss=4), point(5, loss=6)]])
    assert (found.steps, found.lines) == ((0, 2, 5), ((1.0, 3.0, None), (None, 4.0, 6.0)))


def test_what_is_no_number_is_a_gap_and_told() -> None:
    (found,) = panels([[point(0, loss=1), point(1, loss=2)], [point(0, loss=math.inf), point(1, loss=math.nan)]])
    assert found.lines == ((1.0, 2.0), (None, None))
    assert found.non_finite == ((1, 0, "inf"),)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=60), st.integers(2, 50))
@SEEDED
def test_of_long_runs_the_extremes_stay(values: list[float], max_points: int) -> None:
    before = curves.MAX_POINTS
    curves.MAX_POINTS = max_points
    try:
        (found,) = panels([[point(step, loss=value) for step, value in enumerate(values)]])
    finally:
        curves.MAX_POINTS = before
    finite = [value for value in values if math.isfinite(value)]
    shown = [value for value in found.lines[0] if value is not None]
    assert len(found.steps) == len(found.lines[0]) <= max(max_points + 2, 3)
    assert (found.steps[0], found.steps[-1]) == (0, len(values) - 1)
    assert list(found.steps) == sorted(found.steps)
    if finite:
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    if len(values) <= max_points:
        assert shown == finite


def test_what_a_run_measured_below_its_trace_is_shown_and_of_a_step_the_last_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "run_default").mkdir()
    lines = {
        "metrics.jsonl": ['{"step": 0, "loss": 3, "own": 1}', '{"step": -1, "own": 1}', '{"own": 2}', "{", "[]"],
        "run_default/metrics.jsonl": ['{"step": 0, "idle": 9}', '{"step": 1, "idle": 1}', '{"step": 0, "idle": 0.25}'],
        "run_default/rollouts.jsonl": ['{"step": 1, "waiting": 7, "s": [1.0]}', '{"step": 1e300, "waiting": 1}'],
    }
    for name, text in lines.items():
        (run / name).write_text("\n".join(text), "utf-8")
    found = curves_data(read_report(tmp_path, ["a"]))["panels"]
    measured = [panel for panel in found if panel["place"] == "measured-panels"]
    assert {panel["name"]: (panel["steps"], panel["lines"]) for panel in measured} == {
        "metrics: own": ((0, 1), ((1.0, None),)),
        "metrics: idle": ((0, 1), ((0.25, 1.0),)),
        "rollouts: waiting": ((0, 1), ((None, 7.0),)),
    }, "the loss is in the curve"
    assert [panel["name"] for panel in found if panel["place"] == "panels"] == ["reward_mean", "loss"]
