"""Failed tests of a file whose own output does not show them, because pytest was ended before its summary."""

from pathlib import Path

from harness.bits.errors import ReportError
from harness.bits.text import one_line
from harness.process.program_output import OutputFilter
from harness.runner.report_file import TestEnd, TestReport, read_report
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, UnitResult

MAX_SHOWN = 20
"""Tests of one file that are shown; the others are counted."""
MAX_CHARS = 20_000
"""Characters of one failure."""
FAILED = (TestOutcome.FAILED, TestOutcome.ERROR)
WITH_SUMMARY = (0, 1, 2, 4, 5)
"""Exit codes at which pytest prints the failures of its tests before it exits."""


def unprinted_failures(result: UnitResult) -> list[tuple[str, TestEnd]]:
    """Return the failed tests of a unit, with their node ids, that no printed output shows; empty if there are none."""
    if not result.directory:
        return []
    try:
        report = read_report(Path(result.directory) / "report.jsonl")
    except (ReportError, OSError):
        return []
    if result.outcome is not Outcome.INTERRUPTED and _is_summarised(report):
        return []
    return [(nodeid, end) for nodeid, end in report.ends.items() if end.outcome in FAILED]


def failure_lines(failures: list[tuple[str, TestEnd]], *, colour: bool) -> list[str]:
    """Return a title and the text of each failure, as many as are shown; safe to print."""
    lines: list[str] = []
    for nodeid, end in failures[:MAX_SHOWN]:
        reason = f": {one_line(end.reason)}" if end.reason else ""
        lines.append(f"{end.outcome.value.upper()} {one_line(nodeid)}{reason}")
        output = OutputFilter(colour=colour)
        text = output.feed(_cut(end.text).encode("utf-8", "backslashreplace")) + output.finish()
        lines += [*text.rstrip("\n").split("\n"), ""] if text else []
    if len(failures) > MAX_SHOWN:
        lines.append(f"and {len(failures) - MAX_SHOWN:,} more")
    return lines


def _is_summarised(report: TestReport) -> bool:
    return report.finished_exit in WITH_SUMMARY


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
