"""Tests that failed before their file was ended: pytest prints failures only at its own end."""

from collections.abc import Iterator
from pathlib import Path

from harness.core.errors import ReportError
from harness.core.program_output import MAX_SHOWN_BYTES
from harness.core.report_file import TestEnd, TestReport, read_report
from harness.core.test_outcomes import TestOutcome
from harness.core.text import one_line
from harness.runner.units import UnitResult

_BAD = (TestOutcome.FAILED, TestOutcome.ERROR)


def unshown_failures(result: UnitResult) -> Iterator[tuple[str, str]]:
    """Yield (node id, text) of each failed test that the output of its file does not show, in order."""
    report = _report_of(result)
    if report.finished_exit is None:
        yield from ((nodeid, (end.text or end.reason)[:MAX_SHOWN_BYTES]) for nodeid, end in _failed(report))


def failure_lines(result: UnitResult) -> Iterator[str]:
    """Yield a line for each failed test of a file whose output is not printed, and the directory of that output."""
    failed = _failed(_report_of(result))
    lines = [f"{end.outcome.value}: {one_line(nodeid)}: {one_line(end.reason)}" for nodeid, end in failed]
    yield from lines
    if lines:
        yield f"(kept in {one_line(result.directory, 4096)})"


def _failed(report: TestReport) -> Iterator[tuple[str, TestEnd]]:
    yield from ((nodeid, end) for nodeid, end in report.ends.items() if end.outcome in _BAD)


def _report_of(result: UnitResult) -> TestReport:
    """Return the report of an attempt; an empty one if there is none, or if it cannot be read."""
    try:
        return read_report(Path(result.directory, "report.jsonl")) if result.directory else TestReport()
    except (OSError, ReportError):
        return TestReport()
