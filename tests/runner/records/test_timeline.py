"""The timeline of a run: files and tests in the time of the run, and the rows on which they ran."""

from collections.abc import Iterable

import pytest

from harness.runner.events import (
    AttemptFailed,
    AttemptStarted,
    CollectionFinished,
    Event,
    GpuQuarantined,
    GpuReadmitted,
    LeaseRefused,
    LeaseReturned,
    RunStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.records.timeline import FileSpan, Timeline
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult

A, B, C, LATE = (f"tests/test_{name}.py" for name in ("a", "b", "c", "late"))
GPUS = ("GPU-0", "GPU-1", "GPU-2")
UNITS = tuple(Unit(path, Need(num), NeedSource.IMPORT) for path, num in ((A, 0), (B, 1), (C, 0), (LATE, 2)))
OF_PATH = {unit.path: unit for unit in UNITS}


def told(*more: Event) -> tuple[Timeline, RunState]:
    """The timeline and the state of a run with these events after its collection."""
    timeline, state = Timeline(), RunState()
    lines = tuple(f"{number} NVIDIA H200 143 GB {gpu_id}" for number, gpu_id in enumerate(GPUS))
    start = RunStarted(0.0, "run", "", lines, (), (), "cgroup", 1)
    for event in (start, CollectionFinished(0.5, UNITS, (1.0,) * len(UNITS), 1.0, 1.0, 0.5), *more):
        state.apply(event)
        timeline.on_event(event, state)
    return timeline, state


def ran(path: str, start_s: float, end_s: float, gpu_ids: tuple[str, ...] = ()) -> Iterable[Event]:
    """The events of a file with one test."""
    yield AttemptStarted(start_s, path, gpu_ids, 0, "d")
    yield TestStarted(start_s, path, f"{path}::test", None)
    yield TestFinished(end_s, path, f"{path}::test", "passed", end_s - start_s)
    if gpu_ids:
        yield LeaseReturned(end_s, path, gpu_ids)
    yield UnitFinished(end_s, UnitResult(OF_PATH[path], Outcome.PASSED, duration_s=end_s - start_s))


def times(span: FileSpan) -> list[tuple[str, float, float]]:
    return [(test.outcome.value, test.start_s, test.end_s) for test in span.tests]


def test_tests_whose_ends_were_read_at_once_follow_each_other() -> None:
    """A report is polled: what ended since the last time has one time in the record."""
    timeline, _ = told(
        AttemptStarted(10.0, A, (), 0, ""),
        *(TestStarted(12.0, A, f"{A}::{name}", None) for name in ("a", "b", "c")),
        *(TestFinished(12.0, A, f"{A}::{name}", "passed", seconds) for name, seconds in (("a", 5.0), ("b", 0.5))),
    )
    span = timeline.files[A]
    assert times(span) == [("passed", 10.0, 11.5), ("passed", 11.5, 12.0), ("unfinished", 12.0, 12.0)]
    assert (span.outcome, span.tests[0].duration_s) == (None, 5.0)


def refused(t: float) -> list[Event]:
    """A start on a GPU that turns out to be busy."""
    return [
        AttemptStarted(t, LATE, ("GPU-0",), 3, "first"),
        GpuQuarantined(t + 1, LATE, "GPU-0", "busy"),
        LeaseRefused(t + 1, LATE, {"GPU-0": "busy"}),
    ]


def test_a_refused_lease_is_no_part_of_the_timeline() -> None:
    timeline, state = told(*refused(10.0), GpuReadmitted(40.0, "GPU-0"))
    assert timeline.files == {}
    assert [each.gpu_id for each in timeline.readmitted] == ["GPU-0"]
    timeline, state = told(*refused(10.0), AttemptStarted(12.0, LATE, ("GPU-1",), 3, "second"))
    span = timeline.files[LATE]
    assert (span.start_s, span.gpu_ids, span.directory) == (12.0, ("GPU-1",), "second")
    assert timeline.rows(state)[0].lost_s == 11.0


@pytest.mark.parametrize("is_rest", [False, True])
def test_after_a_refused_lease_a_file_is_where_it_ran_before(is_rest: bool) -> None:
    test = f"{LATE}::test_it"
    before = [
        AttemptStarted(8.0, LATE, ("GPU-1",), 3, "before"),
        TestStarted(8.0, LATE, test, None),
        TestFinished(9.0, LATE, test, "failed", 1.0),
        LeaseReturned(9.0, LATE, ("GPU-1",)),
        AttemptFailed(9.0, LATE, 1, 2, UnitResult(OF_PATH[LATE], Outcome.FAILED), (), is_rest),
    ]
    span = told(*before, *refused(10.0))[0].files[LATE]
    assert (span.start_s, span.gpu_ids, span.directory) == (8.0, ("GPU-1",), "before")
    assert [(each.nodeid, each.start_s, each.end_s) for each in span.tests] == [(test, 8.0, 9.0)]


def test_the_rest_of_a_file_goes_on_where_it_began() -> None:
    test = f"{A}::test_it"
    timeline, _ = told(
        AttemptStarted(8.0, A, (), 3, "before"),
        TestStarted(8.0, A, test, None),
        AttemptFailed(9.0, A, 1, 2, UnitResult(OF_PATH[A], Outcome.CRASHED), (), is_rest=True),
        AttemptStarted(10.0, A, (), 3, "rest"),
        TestStarted(10.0, A, f"{test}_2", None),
        TestFinished(11.0, A, f"{test}_2", "passed", 1.0),
    )
    span = timeline.files[A]
    assert (span.start_s, span.directory) == (8.0, "before")
    assert sorted(each.nodeid for each in span.tests) == [test, f"{test}_2"]


def test_each_gpu_has_a_row_and_as_many_cpu_slots_as_were_used_at_once() -> None:
    beside = [each for both in zip(ran(A, 0.5, 3.5), ran(C, 1.0, 2.0), strict=True) for each in both]
    timeline, state = told(*beside, *ran(B, 4.0, 11.0, ("GPU-0",)), *ran(LATE, 12.0, 13.0, ("GPU-1", "GPU-2")))
    rows = timeline.rows(state)
    assert [(row.name, [each.path for each in row.files]) for row in rows] == [
        ("GPU 0", [B]),
        ("GPU 1", [LATE]),
        ("GPU 2", [LATE]),
        ("CPU slot 0", [A]),
        ("CPU slot 1", [C]),
    ]
    assert (rows[0].busy_s, rows[0].title, rows[0].lost_s) == (7.0, "0 NVIDIA H200 143 GB GPU-0", None)
    assert times(timeline.files[A]) == [("passed", 0.5, 3.5)]
