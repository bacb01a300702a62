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
from xml.etree.ElementTree import Element, SubElement, tostring

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
from harness.runner.units import Attempt, Outcome, UnitResult

MAX_TEXT = 200_000
"""Characters of one failure that are kept: GitLab refuses reports of more than 30 MB."""
BAD = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
PASSING = (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS)
NO_OUTCOME = "the runner stopped before this unit had an outcome"
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f]")


class JUnitReporter(LateReporter):
    """Writes the report, also of a run that never finished."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, "JUnit XML", lambda state, finished: "")
        self._clock = clock
        self._began: datetime | None = None
        self._started: dict[str, datetime] = {}

    def on_event(self, event: Event, state: RunState) -> None:
        """Remember when units started; write at the end."""
        self._began = self._began or self._clock.wall() - timedelta(seconds=event.t)
        if isinstance(event, AttemptStarted):
            self._started.setdefault(event.path, self._began + timedelta(seconds=event.t))
        super().on_event(event, state)

    def _write(self, state: RunState, finished: RunFinished | None) -> None:
        totals = Counter(tests=0, failures=0, errors=0)
        with TemporaryFile(dir=self._file.path.parent) as suites:
            for suite in self._suites(state, finished):
                totals.update({name: int(suite.attrib[name]) for name in totals})
                suites.write(tostring(suite, "unicode").encode() + b"\n")
            suites.seek(0)
            counts = " ".join(f'{name}="{number}"' for name, number in totals.items())
            root = f'<testsuites name="rlharness" time="{state.t:.3f}" {counts}>'
            with self._file.opened() as file:
                file.write(f'<?xml version="1.0" encoding="utf-8"?>\n{root}\n'.encode())
                shutil.copyfileobj(suites, file)
                file.write(b"</testsuites>")

    def _suites(self, state: RunState, finished: RunFinished | None) -> Iterator[Element]:
        whole = [("[run]", finished.error, "run", finished.error)] if finished and finished.error else []
        for each in finished.failed_workers if finished else ():
            whole.append((f"[worker {each.name}]", each.reason, "worker", each.text))
        if whole:
            cases = [_case(name, "rlharness", _told("error", *error)) for name, *error in whole]
            yield _suite("rlharness", ".", cases)
        for path, unit in sorted(state.units.items()):
            result = state.results.get(path) or UnitResult(unit, Outcome.INTERRUPTED, NO_OUTCOME)
            suite = _suite(path, unit.file_path, list(_cases(result)), result.duration_s)
            if path in self._started:
                suite.set("timestamp", self._started[path].isoformat(timespec="milliseconds"))
            yield suite


def _suite(name: str, file: str, cases: list[Element], seconds: float = 0.0) -> Element:
    tags = Counter(child.tag for case in cases for child in case)
    counts = {"failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"]}
    numbers = {"tests": len(cases), **counts, "time": round(seconds, 3)}
    suite = Element("testsuite", {"name": _legal(name), "file": _legal(file)})
    suite.attrib |= {key: str(number) for key, number in numbers.items()}
    suite.extend(cases)
    return suite


def _case(name: str, classname: str, *children: Element | None, seconds: float = 0.0) -> Element:
    case = Element("testcase", name=name, classname=classname, time=str(round(seconds, 3)))
    case.extend(child for child in children if child is not None)
    return case


def _told(tag: str, reason: str, kind: str, text: str = "") -> Element:
    """Return what became of a test."""
    element = Element(tag, message=_legal(one_line(reason, 1000)), type=kind)
    element.text = _legal(without_middle(text, MAX_TEXT)) or None
    return element


def _output(directory: str) -> Element | None:
    element = Element("system-out")
    element.text = _legal(f"output of the test file: {Path(directory, 'output.log')}")
    return element if directory else None


def _cases(result: UnitResult) -> Iterator[Element]:
    """The testcases of one unit, in the order of its tests."""
    try:
        report, unreadable = read_attempts(result), ""
    except (OSError, ReportError) as error:
        report, unreadable = TestReport(), f"its report cannot be read: {error}"
    reruns: list[tuple[Attempt, TestReport]] = []
    for attempt in (each for each in result.attempts if not each.is_rest):
        with suppress(OSError, ReportError):
            reruns.append((attempt, read_report(Path(attempt.directory, "report.jsonl"))))
    # Pytest left tests out by its own choice, as with -x; not where rlharness ended the file.
    stopped = report.finished_exit is not None and result.outcome in (*PASSING, Outcome.FAILED, Outcome.LEANING)
    is_explained = False
    for nodeid in report.all_ids():
        outcome = report.outcome_of(nodeid)
        is_explained |= outcome in BAD or (outcome is TestOutcome.UNSTARTED and not stopped)
        end = report.ends.get(nodeid, TestEnd(outcome, 0.0, "", ""))
        told = _end(end, outcome, result, stopped_itself=stopped)
        kind = "rerun" if outcome in NAMED else "flaky"
        earlier = [_rerun(kind, nodeid, attempt, each) for attempt, each in reruns if each.outcome_of(nodeid) in NAMED]
        output = _output(result.directory) if outcome in BAD else None
        yield _case(*_names(nodeid), told, *earlier, output, seconds=end.duration_s)
    if result.outcome is Outcome.FLAKY:
        whole = [
            _earlier("flakyError", attempt.reason or attempt.outcome.value, attempt.outcome.value, "", attempt)
            for attempt, each in reruns
            if not any(each.outcome_of(nodeid) in NAMED for nodeid in each.all_ids())
        ]
        if whole:  # attempts that failed without a failed test
            yield _case("[flaky]", _names(result.unit.path)[1], *whole)
    if unreadable or not (is_explained or result.outcome in PASSING):
        yield _unit_case(result, report, unreadable)


def _end(end: TestEnd, outcome: TestOutcome, result: UnitResult, *, stopped_itself: bool) -> Element | None:
    """Return what became of a test; None for one that passed."""
    why = result.reason or result.outcome.value
    match outcome:
        case TestOutcome.FAILED | TestOutcome.ERROR if result.is_accepted:
            return _told("skipped", f"{result.outcome.value}: {why}", "leaning", end.text)
        case TestOutcome.FAILED | TestOutcome.ERROR | TestOutcome.SKIPPED:
            return _told(
                "failure" if outcome is TestOutcome.FAILED else outcome.value, end.reason, outcome.value, end.text
            )
        case TestOutcome.XFAILED:
            return _told("skipped", end.reason, "xfailed")
        case TestOutcome.UNFINISHED:
            return _told("error", f"it was running when the process ended: {why}", "unfinished")
        case TestOutcome.UNSTARTED if stopped_itself:
            return _told("skipped", "pytest stopped before it began", "unstarted")
        case TestOutcome.UNSTARTED:
            return _told("error", f"the process ended before it began: {why}", "unstarted")
    return None


def _rerun(kind: str, nodeid: str, attempt: Attempt, report: TestReport) -> Element:
    """Return the element of a test that failed in an earlier attempt."""
    outcome = report.outcome_of(nodeid)
    end = report.ends.get(nodeid, TestEnd(outcome, 0.0, attempt.reason or attempt.outcome.value, ""))
    name = f"{kind}{'Failure' if outcome is TestOutcome.FAILED else 'Error'}"
    return _earlier(name, end.reason or outcome.value, outcome.value, end.text, attempt)


def _earlier(tag: str, reason: str, kind: str, text: str, attempt: Attempt) -> Element:
    element = _told(tag, reason, kind)
    SubElement(element, "stackTrace").text = _legal(without_middle(text, MAX_TEXT))
    element.extend(each for each in [_output(attempt.directory)] if each is not None)
    return element


def _unit_case(result: UnitResult, report: TestReport, unreadable: str) -> Element:
    """Return a testcase for a unit whose outcome none of its tests explains."""
    outcome = result.outcome
    part = f" {result.unit.part}" if result.unit.part else ""
    message = unreadable or result.reason or outcome.value.replace("_", " ")
    told = _told("skipped", message, outcome.value)  # it never ran; or it passed, and only its report is gone
    if result.is_failure or outcome is Outcome.INTERRUPTED:
        texts = [text for _, text in report.collect_errors] or [result.unit.collect_error]
        told = _told("error", message, outcome.value, "\n".join(texts))
    return _case(f"[{outcome.value}]{part}", _names(result.unit.file_path)[1], told, _output(result.directory))


def _names(nodeid: str) -> tuple[str, str]:
    """(name, classname) as pytest has them: test_y[p] of tests.a.TestX for tests/a.py::TestX::test_y[p]."""
    path, _, rest = nodeid.partition("::")
    module = path.removesuffix(".py").replace("/", ".")
    inner, bracket, parameters = rest.partition("[")
    *classes, name = inner.split("::")
    return _legal(name + bracket + parameters) or module, _legal(".".join([module, *classes]))


def _legal(text: str) -> str:
    """`text` with the characters that XML cannot hold, escaped or not, as Python escapes."""
    return _ILLEGAL.sub(lambda match: escape(match.group()), text)
