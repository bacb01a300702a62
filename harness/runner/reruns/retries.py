"""Run units again: which ones, which of their tests, and the one outcome that comes of all attempts.

attempt ends ─▶ failed, and attempts are left?    ─▶ AttemptFailed: the dispatcher queues the unit once more
             ─▶ its process ended before its time? ─▶ the same for the rest: the tests that had not begun
             └────────────────────────────────────▶ UnitFinished: flaky if it passed at last, else the last outcome;
                                                     of a unit whose rest ran elsewhere, that of the process that ended
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.bits.errors import ReportError
from harness.runner.events import AttemptFailed, UnitFinished
from harness.runner.report_file import LostTest, TestOutcome, TestReport, read_report
from harness.runner.units import Attempt, Outcome, Unit, UnitResult, merge_uses

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
CUT_SHORT = frozenset((Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.EXITED_EARLY, Outcome.SUPERVISOR_LOST))
"""Outcomes of a process that ended before all of its tests had begun, through one of them."""
LEAST_LIMIT_S = 1.0
"""Time limit of the rest of a unit, at least."""
MAX_RESTS = 50
"""How often the rest of a unit is run at most."""
NAMED = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
AGAIN = (*NAMED, TestOutcome.UNSTARTED)


def tests_to_repeat(outcome: Outcome, reason: str, report: TestReport) -> tuple[str, ...]:
    """Return the tests of a failed attempt that failed or did not run; none where they do not explain how it ended.

    A fault of a teardown may be that of other tests' fixtures; a process can crash after its tests, or not exit.
    """
    outcomes = {nodeid: report.outcome_of(nodeid) for nodeid in report.all_ids()}
    has_named = not {*NAMED}.isdisjoint(outcomes.values())
    is_explained = bool(report.running) or (outcome is Outcome.FAILED and not reason and has_named)
    has_exited_late = any(lost.nodeid not in report.running for lost in report.lost)
    if report.unread or report.fails_in_teardown or has_exited_late or not is_explained:
        return ()
    return tuple(nodeid for nodeid, outcome in outcomes.items() if outcome in AGAIN)


def rest_of(report: TestReport) -> tuple[str, ...]:
    """Return the tests of a process cut short that had not begun; none where no test had, which would repeat itself."""
    outcomes = {nodeid: report.outcome_of(nodeid) for nodeid in report.all_ids()}
    unstarted = tuple(nodeid for nodeid, outcome in outcomes.items() if outcome is TestOutcome.UNSTARTED)
    return unstarted if len(unstarted) < len(outcomes) and not report.unread else ()


def read_attempts(result: UnitResult) -> TestReport:
    """Return the tests of all attempts of a unit as one report: of a test that ran again, its last end.

    Its `lost` has every test that never ended, those too whose attempt ended with them.
    Raises ReportError and OSError as `read_report` does.
    """
    merged = TestReport()
    for each in result.in_time:
        if each.directory:
            report = read_report(Path(each.directory, "report.jsonl"))
            report.lost = lost_in(report, each.outcome, each.reason)
            merged = _overlaid(merged, report)
    return merged


def lost_in(report: TestReport, outcome: Outcome, reason: str) -> tuple[LostTest, ...]:
    """Return the tests that never ended in an attempt with this outcome."""
    return (*report.lost, *(LostTest(nodeid, outcome.value, reason) for nodeid in report.present))


def _overlaid(earlier: TestReport, later: TestReport) -> TestReport:
    known = {*later.ends, *later.running}
    return replace(
        later,
        nodeids=tuple(dict.fromkeys((*earlier.nodeids, *later.nodeids))),
        suite_properties=(*earlier.suite_properties, *later.suite_properties),
        ends={nodeid: end for nodeid, end in earlier.ends.items() if nodeid not in later.running} | later.ends,
        running=(*(nodeid for nodeid in earlier.running if nodeid not in known), *later.running),
        lost=(*(lost for lost in earlier.lost if lost.nodeid not in known), *later.lost),
    )


@dataclass(slots=True)
class _Earlier:
    """The earlier attempts of a unit that runs again."""

    results: list[UnitResult] = field(default_factory=list)
    selection: tuple[str, ...] = ()
    """Tests of the present attempt; empty for what was asked for."""
    rest: tuple[str, ...] = ()
    """The same, for one that runs the rest of the attempt before it."""
    num_before: int = 0
    """Number of attempts before the first rest."""


@dataclass(slots=True)
class Retries:
    """The earlier attempts of units that run again, by the number of the unit."""

    limit: int
    """How often a unit is run again at most; 0 for never."""
    runs_rests: bool = True
    """Whether the tests that had not begun when their process ended run in another."""
    _earlier: defaultdict[int, _Earlier] = field(default_factory=lambda: defaultdict(_Earlier))

    def name(self, number: int) -> str:
        """Return the name of the present attempt: `0007`, and `0007-1` when it runs again for the first time."""
        num_earlier = len(self._earlier[number].results)
        return f"{number:04d}-{num_earlier}" if num_earlier else f"{number:04d}"

    def asked(self, number: int, unit: Unit) -> Unit:
        """Return the unit with the tests that its present attempt runs."""
        selection = self._earlier[number].selection
        return replace(unit, selection=selection) if selection else unit

    def has_earlier(self, number: int) -> bool:
        """Return whether the present attempt of the unit follows another one."""
        return bool(self._earlier[number].results)

    def is_last(self, number: int) -> bool:
        """Return whether no other attempt of the unit follows if the present one fails."""
        return len(self._earlier[number].results) >= self.limit and not self._earlier[number].rest

    def rest(self, number: int) -> tuple[str, ...]:
        """Return the tests of an attempt that runs the rest of the one before; none for any other attempt."""
        return self._earlier[number].rest

    def limit_s(self, number: int, timeout_s: float) -> float:
        """Return the time limit of the present attempt: the rest of a unit has what its process has left of it."""
        earlier = self._earlier[number]
        if not earlier.rest:
            return timeout_s
        return max(timeout_s - sum(each.duration_s for each in earlier.results[earlier.num_before :]), LEAST_LIMIT_S)

    def end(
        self, number: int, result: UnitResult, report: TestReport, *, again: tuple[str, ...] = (), spent: bool = False
    ) -> AttemptFailed | UnitFinished:
        """Return the event that ends an attempt, at a time that the caller sets.

        `again` are its `tests_to_repeat`; `spent` if its time limit passed.
        """
        earlier = self._earlier[number]
        num_earlier, path = len(earlier.results), result.unit.path
        if result.outcome is Outcome.USAGE_ERROR and earlier.selection:  # its tests' names change: run the whole file
            why = f"pytest did not find the tests that had failed: {result.reason}"
            result = replace(result, outcome=earlier.results[-1].outcome, reason=why)
            earlier.selection = ()
        if result.outcome in RETRIED and num_earlier < self.limit:
            earlier.results.append(replace(result, unit=replace(result.unit, selection=earlier.selection)))
            earlier.selection = again
            return AttemptFailed(0.0, path, num_earlier + 1, self.limit, result, again)
        asked_to_end = result.outcome is Outcome.EXITED_EARLY and report.finished_exit is not None  # pytest.exit()
        rest = rest_of(report) if self.runs_rests and result.outcome in CUT_SHORT and not asked_to_end else ()
        num_before = earlier.num_before if earlier.rest else num_earlier
        if rest and not spent and num_earlier - num_before < MAX_RESTS:
            earlier.results.append(result)
            earlier.rest, earlier.num_before = rest, num_before
            return AttemptFailed(0.0, path, num_earlier + 1, self.limit, result, rest, is_rest=True)
        return UnitFinished(0.0, self._settled(number, result))

    def last(self, number: int, why: str) -> UnitResult | None:
        """Return the result of a unit that will not run again after all; None for one without an attempt."""
        if not (results := self._earlier[number].results):
            return None
        last = results.pop()
        reason = "; ".join(part for part in (last.reason, f"not run again: {why}") if part)
        return self._settled(number, replace(last, reason=reason))

    def _settled(self, number: int, result: UnitResult) -> UnitResult:
        """Return the one result of a unit, of its last attempt and those before it.

        Of one that was cut short, it is that of the first process, with the tests of all.
        """
        found = self._earlier.pop(number)
        all_of_it = (*found.results, result)
        if len(all_of_it) == 1:
            return result
        if found.rest:
            before, (first, *rests) = all_of_it[: found.num_before], all_of_it[found.num_before :]
            num_processes = "another process" if len(rests) == 1 else f"{len(rests)} other processes"
            attempts = (*map(_attempt, before), *(_attempt(each, is_rest=True) for each in rests))
            reason = f"{first.reason}; the tests after it ran in {num_processes}"
            reason = ": ".join((reason, "; ".join(each.reason for each in rests if each.reason))).removesuffix(": ")
            return _merged(replace(first, reason=reason, attempts=attempts), all_of_it)
        if result.outcome is Outcome.PASSED:
            why = f"passed at attempt {len(all_of_it)} of {self.limit + 1}"
            result = replace(result, outcome=Outcome.FLAKY, reason=why)
        return _merged(replace(result, attempts=tuple(map(_attempt, found.results))), all_of_it)


def _merged(result: UnitResult, all_of_it: Sequence[UnitResult]) -> UnitResult:
    """Return the result with the durations, tests and processes of all attempts."""
    result = replace(
        result,
        duration_s=sum(each.duration_s for each in all_of_it),
        left_behind=tuple(each for one in all_of_it for each in one.left_behind),
        skip_reasons=tuple(dict.fromkeys(each for one in all_of_it for each in one.skip_reasons)),
        collected_need=all_of_it[0].collected_need,
        num_deselected=all_of_it[0].num_deselected,
        gpu_memory=merge_uses([each.gpu_memory for each in all_of_it]),
    )
    try:
        return replace(result, tests=read_attempts(result).counts())
    except (ReportError, OSError):  # a report is gone: the counts are those of the last attempt
        return result


def _attempt(result: UnitResult, *, is_rest: bool = False) -> Attempt:
    selection = result.unit.selection
    return Attempt(result.outcome, result.reason, result.duration_s, result.directory, selection, is_rest)


def flaky_tests(result: UnitResult) -> Sequence[str]:
    """Return the tests that failed in an earlier attempt of a flaky unit; none where no report names one."""
    found: dict[str, None] = {}
    for attempt in result.attempts:
        if attempt.is_rest:
            continue
        try:
            report = read_report(Path(attempt.directory, "report.jsonl"))
        except (ReportError, OSError):
            continue
        found |= dict.fromkeys(nodeid for nodeid in report.all_ids() if report.outcome_of(nodeid) in NAMED)
    return tuple(found)
