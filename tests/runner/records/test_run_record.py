"""The record of a run, read back: files and tests in time, whatever the file holds."""

from pathlib import Path

import pytest

from harness.runner.events import (
    AttemptFailed,
    AttemptStarted,
    Event,
    GpuQuarantined,
    GpuReadmitted,
    LeaseRefused,
    TestFinished,
    TestStarted,
)
from harness.runner.need import Need
from harness.runner.records.run_record import RECORD, RunRecord, read_run_record
from harness.runner.records.timeline import rows_of
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.render.run_pages import write_run

A, B, C = "tests/test_a.py", "tests/test_b.py", "tests/test_c.py"
FILES = {
    A: {"test_one": ("passed", 1.0), "test_two": ("failed", 2.0)},
    B: {"test_one": ("passed", 3.0), "test_hangs": ("unfinished", 4.0)},
    C: {"test_one": ("skipped", 0.5)},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_run(tmp_path, "20260301-123000-abcdef", FILES) / RECORD


def times(record: RunRecord, path: str) -> list[tuple[str, float, float]]:
    return [(test.outcome.value, test.start_s, test.end_s) for test in record.files[path].tests]


def test_files_and_tests_have_their_times(path: Path) -> None:
    record = read_run_record(path)
    assert (record.run_id, record.exit_code, record.num_unreadable) == ("20260301-123000-abcdef", 1, 0)
    assert [(each.path, each.outcome) for each in record.files.values()] == [
        (A, Outcome.FAILED),
        (B, Outcome.CRASHED),
        (C, Outcome.PASSED),
    ]
    assert (record.files[A].start_s, record.files[A].end_s, record.files[A].gpu_ids) == (0.5, 3.5, ())
    assert times(record, A) == [("passed", 0.5, 1.5), ("failed", 1.5, 3.5)]
    assert times(record, B) == [("passed", 0.5, 3.5), ("unfinished", 3.5, 7.5)]
    assert (record.first_start_s, record.last_end_s, record.makespan_s) == (0.5, 7.5, 7.0)


def test_tests_whose_ends_were_read_at_once_follow_each_other(tmp_path: Path) -> None:
    """A report is polled: what ended since the last time has one time in the record."""
    directory = write_run(tmp_path, "20260301-123000-abcdef", {A: {}})
    more = [
        AttemptStarted(10.0, A, (), 0, ""),
        *(TestStarted(12.0, A, f"{A}::{name}", None) for name in ("a", "b", "c")),
        *(TestFinished(12.0, A, f"{A}::{name}", "passed", seconds) for name, seconds in (("a", 5.0), ("b", 0.5))),
    ]
    record = read_run_record(directory / RECORD, *more)
    assert times(record, A) == [("passed", 10.0, 11.5), ("passed", 11.5, 12.0), ("unfinished", 12.0, 12.0)]
    assert record.files[A].tests[0].duration_s == 5.0


def test_the_record_of_a_killed_run_is_read_to_its_last_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b"test_two" in line and b"test_finished" in line)
    path.write_bytes(b"".join(lines[:at]) + lines[at][:20])
    record = read_run_record(path)
    assert (record.exit_code, record.num_unreadable) == (None, 0)
    assert record.files[A].outcome is None
    assert [outcome for outcome, _, _ in times(record, A)] == ["passed", "unfinished"]
    assert record.files[C].start_s is None


BROKEN = (
    b"no json",
    b"[1, 2]",
    b'{"event": "attempt_started", "t": -1, "path": "x"}',
    b'{"event": "attempt_started", "t": NaN, "path": "x"}',
    b'{"event": "attempt_started", "t": 1e300, "path": "x", "gpu_ids": [], "directory": ""}',
    b'{"event": "attempt_started", "t": 1, "path": 5, "gpu_ids": [], "directory": ""}',
    b'{"event": "test_finished", "t": 1, "path": "tests/test_a.py", "nodeid": "x", "outcome": "fine", "duration_s": 1}',
    b'{"event": "test_finished", "t": 1, "path": "unknown.py", "nodeid": "x", "outcome": "passed", "duration_s": 1}',
    b'{"event": "unit_finished", "t": 1, "result": []}',
    b'{"event": "run_finished", "t": 1, "exit_code": 1e999}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:40].decode())
def test_a_line_that_is_no_event_is_passed_over(path: Path, line: bytes) -> None:
    before = read_run_record(path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    after = read_run_record(path)
    assert after.num_unreadable == 1
    assert after.files == before.files


def test_a_missing_record_is_empty_and_a_directory_is_refused(tmp_path: Path) -> None:
    assert read_run_record(tmp_path / "gone") == RunRecord()
    with pytest.raises(OSError, match="a directory"):
        read_run_record(tmp_path)


def test_of_a_long_record_the_beginning_is_read(path: Path) -> None:
    record = read_run_record(path, max_bytes=path.stat().st_size - 10)
    assert (record.exit_code, record.num_unreadable, len(record.files)) == (None, 0, 3)


LATE = "tests/test_late.py"


def refused(t: float) -> list[Event]:
    """A start on a GPU that turns out to be busy."""
    return [
        AttemptStarted(t, LATE, ("GPU-0000",), 3, "first"),
        GpuQuarantined(t + 1, LATE, "GPU-0000", "busy"),
        LeaseRefused(t + 1, LATE, {"GPU-0000": "busy"}),
    ]


def test_a_refused_lease_is_no_part_of_the_timeline(path: Path) -> None:
    record = read_run_record(path, *refused(10.0))
    assert (record.files[LATE].start_s, record.files[LATE].gpu_ids, record.num_unreadable) == (None, (), 0)
    assert LATE not in [each.path for row in rows_of(record) for each in row.files]
    assert [lost.gpu_id for lost in record.lost_gpus] == ["GPU-0000"]
    record = read_run_record(path, *refused(10.0), AttemptStarted(12.0, LATE, ("GPU-0001",), 3, "second"))
    span = record.files[LATE]
    assert (span.start_s, span.gpu_ids, span.directory) == (12.0, ("GPU-0001",), "second")


def test_a_gpu_that_was_leased_again_is_not_lost(path: Path) -> None:
    record = read_run_record(path, *refused(10.0), GpuReadmitted(40.0, "GPU-0000"))
    assert record.lost_gpus == []
    assert record.notes[-1] == "GPU-0000 was leased again after 40.0 s: it was as it was before its quarantine"


@pytest.mark.parametrize("is_rest", [False, True])
def test_after_a_refused_lease_a_file_is_where_it_ran_before(path: Path, is_rest: bool) -> None:
    test = f"{LATE}::test_it"
    before = [
        AttemptStarted(8.0, LATE, ("GPU-0001",), 3, "before"),
        TestStarted(8.0, LATE, test, None),
        TestFinished(9.0, LATE, test, "failed", 1.0),
        AttemptFailed(9.0, LATE, 1, 2, UnitResult(Unit(LATE, Need(1), NeedSource.IMPORT), Outcome.FAILED), (), is_rest),
    ]
    span = read_run_record(path, *before, *refused(10.0)).files[LATE]
    assert (span.start_s, span.gpu_ids, span.directory) == (8.0, ("GPU-0001",), "before")
    assert [(each.nodeid, each.start_s, each.end_s) for each in span.tests] == [(test, 8.0, 9.0)]


def test_each_gpu_has_a_row_and_as_many_cpu_slots_as_were_used_at_once(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "20260301-123000-abcdef", FILES, num_gpus=3)
    beside = AttemptStarted(1.0, "tests/test_beside.py", (), 3, "")
    wide = AttemptStarted(8.0, "tests/test_wide.py", ("GPU-0001", "GPU-0002"), 4, "")
    rows = rows_of(read_run_record(directory / RECORD, beside, wide))
    assert [(row.name, [each.path for each in row.files]) for row in rows] == [
        ("GPU 0", [B]),
        ("GPU 1", [C, wide.path]),
        ("GPU 2", [wide.path]),
        ("CPU slot 0", [A]),
        ("CPU slot 1", [beside.path]),
    ]
    assert rows[0].busy_s == 7.0
    assert rows[0].title == "0 NVIDIA H200 143 GB GPU-0000"
    assert rows[3].files[0].tests[1].outcome is TestOutcome.FAILED
