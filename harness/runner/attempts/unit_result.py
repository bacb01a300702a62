"""The result of one attempt, from how it ended and what its tests reported."""

from pathlib import Path

from harness.process.supervisor_client import ProcessEnd
from harness.runner.attempts.attempt_report import last_line, reported
from harness.runner.collection.deselected import all_deselected
from harness.runner.isolation_notes import IsolationCode, IsolationNote, NotForked
from harness.runner.outcomes import classify_outcome
from harness.runner.report_file import TestReport
from harness.runner.units import Outcome, Unit, UnitResult

DIED = " was being imported when pytest "
"""In the first line on a file whose import ended the session, before the output."""


def unit_result(
    unit: Unit, end: ProcessEnd, report: TestReport, timeout_s: float, *, gpu_ids: tuple[str, ...], directory: Path
) -> UnitResult:
    """Return the result of a unit, whose attempt ended as `end` with a limit of `timeout_s`."""
    outcome, reason = classify_outcome(end, reported(report), timeout_s)
    if outcome is Outcome.NO_TESTS and report.num_deselected:
        reason = all_deselected(report.num_deselected)
    return UnitResult(
        unit=unit,
        outcome=outcome,
        reason=reason,
        duration_s=end.duration_s,
        gpu_ids=gpu_ids,
        tests=report.counts(),
        num_deselected=report.num_deselected if unit.part is None or unit.part.number == 1 else 0,
        skip_reasons=report.skip_reasons(),
        left_behind=(*report.left_behind, *end.left_behind),
        collected_need=report.collected_need if report.nodeids else None,
        directory=str(directory),
    )


def unforked_note(path: str, why: str, detail: str) -> IsolationNote:
    """Return the note on a file whose tests were not forked; `why` is of the report, which a test can write to."""
    code = IsolationCode.TESTS_NOT_FORKED
    if why in {each.value for each in NotForked}:
        return IsolationNote(code, path, NotForked(why), detail=detail)
    return IsolationNote(code, path, detail=why)


def why_uncollected(unit: Unit) -> str:
    """Return one line on why a unit cannot be run; the text of one that hung ends with its stacks."""
    if unit.collect_timed_out:
        return "the import of the file exceeded its time limit"
    first = unit.collect_error.partition("\n")[0]
    return first if DIED in first else last_line(unit.collect_error)
