"""JUnit XML for CI systems: a testsuite per unit, a testcase per test, and one for a unit whose end no test explains.

Representation of each outcome:

    passed, xpassed     a testcase alone
    failed, error       <failure>, <error>
    skipped, xfailed    <skipped>
    unfinished          <error>: it was running when the process ended
    unstarted           <error> where the process ended before pytest did: nothing says it would have passed;
                        <skipped> where pytest itself stopped before it (-x)
    a failed unit without a failed test (crash, timeout, collection, exit code), and an interrupted one:
                        a testcase named after the outcome, with <error>
    failed, run again   as it ended; with <flakyFailure> or <flakyError> for each attempt before a pass, and with
                        <rerunFailure> or <rerunError> for each before another failure (Maven Surefire, nextest)
    a unit not run      a testcase named after the outcome, with <skipped> and the reason
    what ended the run  before its time (a suite that cannot be collected, a bug of ours): a testsuite "rlharness" of
                        one testcase, with <error>; one more for each worker that failed after its last file

The shape is what the strictest consumer known takes, the schema of Jenkins' xUnit plugin: it refuses `file` on a
testcase and `skipped` on testsuites, so the file stands on the testsuite, and in every classname.
Units are written one at a time, so that memory holds the tests of one.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO
from xml.etree import ElementTree
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from junitparser import Error, Failure, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from harness.bits.errors import ReportError
from harness.bits.text import escape, one_line
from harness.process.clock import Clock
from harness.render.failures import without_middle
from harness.render.run_files import LateReporter
from harness.runner.events import AttemptStarted, Event, RunFinished
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestEnd, TestReport, read_report
from harness.runner.reruns.retries import NAMED, read_attempts
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Attempt, Outcome, Unit, UnitResult

MAX_TEXT = 200_000
"""Characters of one failure that are kept: GitLab refuses reports of more than 30 MB."""
Reruns = list[tuple[Attempt, TestReport]]
"""Earlier attempts, each with its report."""
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f]")
PASSING = (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS)


class JUnitReporter(LateReporter):
    """Writes the report, also of a run that never finished."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, "JUnit XML", lambda state, finished: "")
        self._clock = clock
        self._began: datetime | None = None
        self._started_t: dict[str, float] = {}

    def on_event(self, event: Event, state: RunState) -> None:
        """Remember when units started; write at the end."""
        if self._began is None:
            self._began = self._clock.wall() - timedelta(seconds=event.t)
        if isinstance(event, AttemptStarted):
            self._started_t.setdefault(event.path, event.t)
        super().on_event(event, state)

    def _write(self, state: RunState, finished: RunFinished | None) -> None:
        with TemporaryFile(dir=self._file.path.parent) as suites:
            totals = Counter[str]()
            for suite in self._suites(state, finished):
                totals += Counter(tests=suite.tests, failures=suite.failures, errors=suite.errors)
                suites.write(suite.tostring() + b"\n")  # type: ignore[no-untyped-call]
            suites.seek(0)
            self._assemble(suites, totals, state.t)

    def _suites(self, state: RunState, finished: RunFinished | None) -> Iterator[TestSuite]:
        error = finished.error if finished else ""
        cases = [_run_case("[run]", error, "run", error)] if error else []
        for each in finished.failed_workers if finished else ():
            cases.append(_run_case(f"[worker {each.name}]", each.reason, "worker", each.text))
        if cases:
            suite = TestSuite("rlharness")
            suite.add_testcases(cases)
            suite._elem.set("file", ".")  # the suite as a whole
            yield suite
        for unit in sorted(state.units.values(), key=lambda unit: unit.path):
            yield self._suite(unit, state.results.get(unit.path))

    def _assemble(self, suites: BinaryIO, totals: Counter[str], seconds: float) -> None:
        """Put the root around the suites."""
        with self._file.opened() as file:
            xml = XMLGenerator(file, encoding="utf-8")
            xml.startDocument()
            counts = {name: str(totals[name]) for name in ("tests", "failures", "errors")}
            root = {"name": "rlharness", "time": f"{seconds:.3f}", **counts}
            xml.startElement("testsuites", AttributesImpl(root))
            xml.characters("\n")
            shutil.copyfileobj(suites, file)
            xml.endElement("testsuites")

    def _suite(self, unit: Unit, result: UnitResult | None) -> TestSuite:
        result = result or UnitResult(unit, Outcome.INTERRUPTED, "the runner stopped before this unit had an outcome")
        suite = TestSuite(_legal(unit.path))
        suite.add_testcases(list(_cases(result)))
        suite.time = round(result.duration_s, 3)
        suite._elem.set("file", _legal(unit.file_path))
        if self._began is not None and unit.path in self._started_t:
            started = self._began + timedelta(seconds=self._started_t[unit.path])
            suite.timestamp = started.isoformat(timespec="milliseconds")
        return suite


def _run_case(name: str, reason: str, kind: str, text: str) -> TestCase:
    """Return a testcase of an error that belongs to no unit."""
    case = TestCase(name, "rlharness", 0.0)
    case.result = _with_text(Error(_message(reason), kind), text)
    return case


def _cases(result: UnitResult) -> Iterator[TestCase]:
    """The testcases of one unit, in the order of its tests."""
    try:
        report = read_attempts(result)
        unreadable = ""
    except (OSError, ReportError) as error:
        report, unreadable = TestReport(), f"its report cannot be read: {error}"
    reruns = _reruns(result)
    explained = False
    for nodeid in report.all_ids():
        outcome = report.outcome_of(nodeid)
        bad = outcome in (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
        explained |= bad or (outcome is TestOutcome.UNSTARTED and not _has_stopped_itself(report, result))
        yield _test_case(nodeid, report, result, reruns)
    if result.outcome is Outcome.FLAKY and (case := _flaky_case(result, reruns)) is not None:
        yield case
    if unreadable or not (explained or result.outcome in PASSING):
        yield _unit_case(result, report, unreadable)


def _test_case(nodeid: str, report: TestReport, result: UnitResult, reruns: Reruns) -> TestCase:
    name, classname = _names(nodeid)
    outcome = report.outcome_of(nodeid)
    end = report.ends.get(nodeid, TestEnd(outcome, 0.0, "", ""))
    case = TestCase(name, classname, round(end.duration_s, 3))
    told = _final_result(end, outcome, result, stopped_itself=_has_stopped_itself(report, result))
    if told is not None:
        case.result = told
    for attempt, earlier in reruns:
        if (rerun := _rerun(nodeid, attempt, earlier, "rerun" if outcome in NAMED else "flaky")) is not None:
            case._elem.append(rerun)
    if result.directory and outcome in (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED):
        case.system_out = _output_of(result)
    return case


def _reruns(result: UnitResult) -> Reruns:
    """Return the earlier attempts of a unit with their reports; without one that cannot be read."""
    found = []
    for attempt in (each for each in result.attempts if not each.is_rest):
        with suppress(OSError, ReportError):
            found.append((attempt, read_report(Path(attempt.directory, "report.jsonl"))))
    return found


def _rerun(nodeid: str, attempt: Attempt, report: TestReport, kind: str) -> ElementTree.Element | None:
    """Return the element of a test that failed in an earlier attempt; None if it did not."""
    outcome = report.outcome_of(nodeid)
    if outcome not in NAMED:
        return None
    end = report.ends.get(nodeid, TestEnd(outcome, 0.0, attempt.reason or attempt.outcome.value, ""))
    name = f"{kind}{'Failure' if outcome is TestOutcome.FAILED else 'Error'}"
    return _rerun_element(name, end.reason, outcome.value, end.text, attempt)


def _flaky_case(result: UnitResult, reruns: Reruns) -> TestCase | None:
    """Return a testcase of the earlier attempts of a flaky unit that failed without a failed test; None without any."""
    case = TestCase("[flaky]", _names(result.unit.path)[1], 0.0)
    for attempt, report in reruns:
        if not any(report.outcome_of(nodeid) in NAMED for nodeid in report.all_ids()):
            case._elem.append(_rerun_element("flakyError", attempt.reason, attempt.outcome.value, "", attempt))
    return case if len(case._elem) else None


def _rerun_element(name: str, reason: str, kind: str, text: str, attempt: Attempt) -> ElementTree.Element:
    element = ElementTree.Element(name, message=_message(reason or kind), type=kind)
    trace = ElementTree.SubElement(element, "stackTrace")
    trace.text = _legal(without_middle(text, MAX_TEXT))
    output = f"output of the test file: {Path(attempt.directory, 'output.log')}"
    ElementTree.SubElement(element, "system-out").text = _legal(output)
    return element


def _has_stopped_itself(report: TestReport, result: UnitResult) -> bool:
    """Whether pytest left tests out by its own choice, as with -x; not where rlharness ended the file."""
    return report.finished_exit is not None and result.outcome in (*PASSING, Outcome.FAILED, Outcome.LEANING)


def _final_result(
    end: TestEnd, outcome: TestOutcome, result: UnitResult, *, stopped_itself: bool
) -> FinalResult | None:
    """Return the result element of a test's testcase; None for a testcase without one."""
    why = result.reason or result.outcome.value
    told: FinalResult | None = None
    match outcome:
        case TestOutcome.FAILED | TestOutcome.ERROR if result.is_accepted:
            told = _with_text(Skipped(_message(f"{result.outcome.value}: {why}"), "leaning"), end.text)
        case TestOutcome.FAILED:
            told = _with_text(Failure(_message(end.reason), "failed"), end.text)
        case TestOutcome.ERROR:
            told = _with_text(Error(_message(end.reason), "error"), end.text)
        case TestOutcome.SKIPPED:
            told = _with_text(Skipped(_message(end.reason), "skipped"), end.text)
        case TestOutcome.XFAILED:
            told = Skipped(_message(end.reason), "xfailed")
        case TestOutcome.UNFINISHED:
            told = Error(_message(f"it was running when the process ended: {why}"), "unfinished")
        case TestOutcome.UNSTARTED if stopped_itself:
            told = Skipped("pytest stopped before it began", "unstarted")
        case TestOutcome.UNSTARTED:
            told = Error(_message(f"the process ended before it began: {why}"), "unstarted")
    return told


def _unit_case(result: UnitResult, report: TestReport, unreadable: str) -> TestCase:
    """Return a testcase for a unit whose outcome none of its tests explains."""
    outcome = result.outcome
    part = f" {result.unit.part}" if result.unit.part else ""
    case = TestCase(f"[{outcome.value}]{part}", _names(result.unit.file_path)[1], 0.0)
    message = _message(unreadable or result.reason or outcome.value.replace("_", " "))
    if result.is_failure or outcome is Outcome.INTERRUPTED:
        texts = [text for _, text in report.collect_errors] or [result.unit.collect_error]
        case.result = _with_text(Error(message, outcome.value), "\n".join(texts))
    else:  # it never ran; or it passed, and only its report is gone
        case.result = Skipped(message, outcome.value)
    if result.directory:
        case.system_out = _output_of(result)
    return case


def _with_text(told: FinalResult, text: str) -> FinalResult:
    if text:
        told.text = _legal(without_middle(text, MAX_TEXT))
    return told


def _names(nodeid: str) -> tuple[str, str]:
    """(name, classname) as pytest has them: test_y[p] of tests.a.TestX for tests/a.py::TestX::test_y[p]."""
    path, _, rest = nodeid.partition("::")
    module = path.removesuffix(".py").replace("/", ".")
    inner, bracket, parameters = rest.partition("[")
    *classes, name = inner.split("::")
    return _legal(name + bracket + parameters) or module, _legal(".".join([module, *classes]))


def _message(text: str) -> str:
    return _legal(one_line(text, 1000))


def _output_of(result: UnitResult) -> str:
    return _legal(f"output of the test file: {Path(result.directory, 'output.log')}")


def _legal(text: str) -> str:
    """`text` with the characters that XML cannot hold, escaped or not, as Python escapes."""
    return _ILLEGAL.sub(lambda match: escape(match.group()), text)
