"""Run failed units again: which ones, which of their tests, and the one outcome that comes of all attempts.

attempt ends ─▶ failed, and attempts are left? ─▶ AttemptFailed: the dispatcher queues the unit once more
                                              └─▶ UnitFinished: flaky if it passed at last, else the last outcome
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core.errors import ReportError
from harness.core.report_file import TestReport, read_report
from harness.core.test_outcomes import TestOutcome
from harness.runner.events import AttemptFailed, UnitFinished
from harness.runner.units import Attempt, Outcome, Unit, UnitResult

RETRIED = frozenset(
    (
        Outcome.FAILED,
        Outcome.COLLECT_ERROR,
        Outcome.COLLECT_TIMEOUT,
        Outcome.PYTEST_ERROR,
        Outcome.TIMED_OUT,
        Outcome.CRASHED,
        Outcome.EXITED_EARLY,
        Outcome.SUPERVISOR_LOST,
    )
)
"""Outcomes of an attempt that another one may change; pytest refuses the same arguments again."""
NAMED = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
AGAIN = (*NAMED, TestOutcome.UNSTARTED)


def tests_to_repeat(report: TestReport) -> tuple[str, ...]:
    """Return the tests of a failed attempt that failed or did not run; none where its report names no failed test."""
    outcomes = {nodeid: report.outcome_of(nodeid) for nodeid in report.all_ids()}
    if report.unread or not any(outcome in NAMED for outcome in outcomes.values()):
        return ()
    return tuple(nodeid for nodeid, outcome in outcomes.items() if outcome in AGAIN)


def read_attempts(result: UnitResult) -> TestReport:
    """Return the tests of all attempts of a unit as one report: of a test that ran again, its last end.

    Raises ReportError and OSError as `read_report` does.
    """
    directories = [attempt.directory for attempt in result.attempts] + [result.directory]
    merged = TestReport()
    for report in (read_report(Path(directory, "report.jsonl")) for directory in directories if directory):
        merged = _overlaid(merged, report)
    return merged


def _overlaid(earlier: TestReport, later: TestReport) -> TestReport:
    known = {*later.ends, *later.running}
    return replace(
        later,
        nodeids=tuple(dict.fromkeys((*earlier.nodeids, *later.nodeids))),
        ends={nodeid: end for nodeid, end in earlier.ends.items() if nodeid not in later.running} | later.ends,
        running=(*(nodeid for nodeid in earlier.running if nodeid not in known), *later.running),
    )


@dataclass(slots=True)
class Retries:
    """The earlier attempts of units that run again, by the number of the unit."""

    limit: int
    """How often a unit is run again at most; 0 for never."""
    _results: dict[int, list[UnitResult]] = field(default_factory=dict)
    _selections: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def name(self, number: int) -> str:
        """Return the name of the present attempt: `0007`, and `0007-1` when it runs again for the first time."""
        num_earlier = len(self._results.get(number, ()))
        return f"{number:04d}-{num_earlier}" if num_earlier else f"{number:04d}"

    def asked(self, number: int, unit: Unit) -> Unit:
        """Return the unit with the tests that its present attempt runs."""
        return replace(unit, selection=self._selections.get(number, ()) or unit.selection)

    def end(self, number: int, result: UnitResult, report: TestReport) -> AttemptFailed | UnitFinished:
        """Return the event that ends an attempt, at a time that the caller sets."""
        earlier, ran = self._results.get(number, []), self._selections.get(number, ())
        if result.outcome is Outcome.USAGE_ERROR and ran:  # the names of its tests change: run the whole file
            why = f"pytest did not find the tests that had failed: {result.reason}"
            result, ran = replace(result, outcome=earlier[-1].outcome, reason=why), ()
        if result.outcome not in RETRIED or len(earlier) >= self.limit:
            return UnitFinished(0.0, self._settled(number, result))
        self._results[number] = [*earlier, replace(result, unit=replace(result.unit, selection=ran))]
        self._selections[number] = tests = tests_to_repeat(report) or ran
        unit = result.unit
        return AttemptFailed(0.0, unit.path, len(earlier) + 1, self.limit, result, tests)

    def last(self, number: int, why: str) -> UnitResult | None:
        """Return the result of a unit that will not run again after all; None for one without an attempt."""
        if not (earlier := self._results.get(number)):
            return None
        *before, last = earlier
        self._results[number] = before
        reason = "; ".join(part for part in (last.reason, f"not run again: {why}") if part)
        return self._settled(number, replace(last, reason=reason))

    def _settled(self, number: int, result: UnitResult) -> UnitResult:
        """Return the one result of a unit, of its last attempt and those before it."""
        earlier = self._results.pop(number, [])
        if not earlier:
            return result
        outcome = Outcome.FLAKY if result.outcome is Outcome.PASSED else result.outcome
        reason = result.reason
        if outcome is Outcome.FLAKY:
            reason = f"passed at attempt {len(earlier) + 1} of {self.limit + 1}"
        result = replace(
            result,
            outcome=outcome,
            reason=reason,
            duration_s=sum((each.duration_s for each in earlier), result.duration_s),
            attempts=tuple(map(_attempt, earlier)),
            left_behind=tuple(each for one in (*earlier, result) for each in one.left_behind),
            skip_reasons=tuple(dict.fromkeys(each for one in (*earlier, result) for each in one.skip_reasons)),
            collected_need=earlier[0].collected_need,
        )
        try:
            return replace(result, tests=read_attempts(result).counts())
        except (ReportError, OSError):  # a report is gone: the counts are those of the last attempt
            return result


def _attempt(result: UnitResult) -> Attempt:
    return Attempt(result.outcome, result.reason, result.duration_s, result.directory, result.unit.selection)


def flaky_tests(result: UnitResult) -> Sequence[str]:
    """Return the tests that failed in an earlier attempt of a flaky unit; none where no report names one."""
    found: dict[str, None] = {}
    for attempt in result.attempts:
        try:
            report = read_report(Path(attempt.directory, "report.jsonl"))
        except (ReportError, OSError):
            continue
        found |= dict.fromkeys(nodeid for nodeid in report.all_ids() if report.outcome_of(nodeid) in NAMED)
    return tuple(found)
