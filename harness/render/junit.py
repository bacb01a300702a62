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
    a unit not run      a testcase named after the outcome, with <skipped> and the reason
    what ended the run  before its time (a suite that cannot be collected, a bug of ours): a testsuite "rlharness" of
                        one testcase, with <error>; one more for each worker that failed after its last file

The shape is what the strictest consumer known takes, the schema of Jenkins' xUnit plugin: it refuses `file` on a
testcase and `skipped` on testsuites, so the file stands on the testsuite, and in every classname.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from harness.bits.errors import ReportError
from harness.bits.text import escape, one_line
from harness.render.run_words import without_middle
from harness.runner.events import RunFinished
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestEnd, TestOutcome, TestReport
from harness.runner.reruns.retries import read_attempts
from harness.runner.units import Outcome, UnitResult

MAX_TEXT = 200_000
"""Characters of one failure that are kept: GitLab refuses reports of more than 30 MB."""
BAD = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
PASSING = (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS)
NO_OUTCOME = "no outcome of this unit is recorded"
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f]")


def junit_text(state: RunState, finished: RunFinished | None) -> str:
    """Return the report, also of a run that never finished."""
    suites = []
    whole = [("[run]", finished.error, "run", finished.error)] if finished and finished.error else []
    for each in finished.session_failures if finished else ():
        whole.append(("[pytest's session]", each.reason, "session", each.text))
    if whole:
        cases = [_case(name, "rlharness", _result("error", *error)) for name, *error in whole]
        suites.append(_suite("rlharness", ".", cases, 0.0))
    for path, unit in sorted(state.units.items()):
        result = state.results.get(path) or UnitResult(unit, Outcome.INTERRUPTED, NO_OUTCOME)
        report, unreadable = _read(result)
        suites.append(_suite(path, unit.file_path, list(_cases(result, report, unreadable)), result.duration_s))
        if (properties := _properties(report.suite_properties)) is not None:
            suites[-1].insert(0, properties)
    totals = {name: str(sum(int(suite.attrib[name]) for suite in suites)) for name in ("tests", "failures", "errors")}
    root = Element("testsuites", {"name": "rlharness", "time": f"{state.t:.3f}", **totals})
    root.text = "\n"
    root.extend(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, "unicode")}'


def _suite(name: str, file: str, cases: list[Element], seconds: float) -> Element:
    tags = Counter(child.tag for case in cases for child in case)
    numbers = {"tests": len(cases), "failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"]}
    texts = {"name": _legal(name), "file": _legal(file), **{key: str(number) for key, number in numbers.items()}}
    suite = Element("testsuite", texts, time=str(round(seconds, 3)))
    suite.extend(cases)
    suite.tail = "\n"
    return suite


def _case(name: str, classname: str, *children: Element | None, seconds: float = 0.0) -> Element:
    case = Element("testcase", name=name, classname=classname, time=str(round(seconds, 3)))
    case.extend(child for child in children if child is not None)
    return case


def _result(tag: str, reason: str, kind: str, text: str = "") -> Element:
    element = Element(tag, message=_legal(one_line(reason, 1000)), type=kind)
    element.text = _legal(without_middle(text, MAX_TEXT)) or None
    return element


def _output(directory: str) -> Element | None:
    element = Element("system-out")
    element.text = _legal(f"output of the test file: {Path(directory, 'output.log')}")
    return element if directory else None


def _read(result: UnitResult) -> tuple[TestReport, str]:
    """Return what the tests of a unit reported, and why that cannot be read."""
    try:
        return read_attempts(result), ""
    except (OSError, ReportError) as error:
        return TestReport(), f"its report cannot be read: {error}"


def _cases(result: UnitResult, report: TestReport, unreadable: str) -> Iterator[Element]:
    """Yield the testcases of one unit, in the order of its tests."""
    # Pytest left tests out by its own choice, as with -x; not where rlharness ended the file.
    stopped = report.finished_exit is not None and result.outcome in (*PASSING, Outcome.FAILED, Outcome.LEANING)
    is_explained = False
    lost = {each.nodeid: each.reason for each in report.lost}
    for nodeid in report.all_ids():
        outcome = report.outcome_of(nodeid)
        is_explained |= outcome in BAD or (outcome is TestOutcome.UNSTARTED and not stopped)
        end = report.ends.get(nodeid) or TestEnd(outcome, 0.0, lost.get(nodeid, ""), "")
        children: list[Element | None] = [*_failures(end, result)] or [_end(end, outcome, result, stopped)]
        printed = _printed(end, result.directory) if outcome in BAD else []
        yield _case(*_names(nodeid), _properties(end.properties), *children, *printed, seconds=end.duration_s)
    if unreadable or not (is_explained or result.outcome in PASSING):
        # Else it never ran, or its report is gone.
        is_error = result.is_failure or result.outcome is Outcome.INTERRUPTED
        texts = [text for _, text in report.collect_errors] or [result.unit.collect_error]
        message = unreadable or result.reason or result.outcome.value.replace("_", " ")
        text = "\n".join(texts) if is_error else ""
        told = _result("error" if is_error else "skipped", message, result.outcome.value, text)
        name = f"[{result.outcome.value}]{f' {result.unit.part}' if result.unit.part else ''}"
        yield _case(name, _names(result.unit.file_path)[1], told, _output(result.directory))


def _properties(found: Iterable[tuple[str, str]]) -> Element | None:
    element = Element("properties")
    element.extend(Element("property", name=_legal(name), value=_legal(value)) for name, value in found)
    return element if len(element) else None


def _printed(end: TestEnd, directory: str) -> list[Element | None]:
    """What a test has printed, and where the output of its file is."""
    found: list[Element | None] = []
    for tag, is_error in (("system-out", False), ("system-err", True)):
        shown = [(title, text) for title, text in end.sections if ("stderr" in title) is is_error]
        if shown:
            found.append(Element(tag))
            texts = "".join(f"--- {title} ---\n{text.rstrip()}\n" for title, text in shown)
            found[-1].text = _legal(without_middle(texts, MAX_TEXT))  # type: ignore[union-attr]
    return found or [_output(directory)]


def _failures(end: TestEnd, result: UnitResult) -> list[Element]:
    """Each failure and skip of a test that has several; of a file that leans on others, they are none."""
    if result.is_accepted:
        return []
    tags = {"failed": "failure", "skipped": "skipped", "xfailed": "skipped"}
    return [_result(tags.get(kind, "error"), reason, kind, text) for kind, reason, text in end.several]


def _end(end: TestEnd, outcome: TestOutcome, result: UnitResult, stopped: bool) -> Element | None:
    """Return the result of a test; None if it passed."""
    why = end.reason or result.reason or result.outcome.value
    match outcome:
        case TestOutcome.FAILED | TestOutcome.ERROR if result.is_accepted:
            return _result("skipped", f"{result.outcome.value}: {result.reason}", "leaning", end.text)
        case TestOutcome.FAILED | TestOutcome.ERROR | TestOutcome.SKIPPED:
            tag = "failure" if outcome is TestOutcome.FAILED else outcome.value
            return _result(tag, end.reason, outcome.value, end.text)
        case TestOutcome.XFAILED:
            return _result("skipped", end.reason, "xfailed")
        case TestOutcome.UNFINISHED:
            return _result("error", f"it was running when the process ended: {why}", "unfinished")
        case TestOutcome.UNSTARTED if stopped:
            return _result("skipped", "pytest stopped before it began", "unstarted")
        case TestOutcome.UNSTARTED:
            why = result.in_time[-1].reason or result.outcome.value
            return _result("error", f"the process ended before it began: {why}", "unstarted")
    return None


def _names(nodeid: str) -> tuple[str, str]:
    """(name, classname) as pytest has them: test_y[p] of tests.a.TestX for tests/a.py::TestX::test_y[p]."""
    path, _, rest = nodeid.partition("::")
    module = path.removesuffix(".py").replace("/", ".")
    inner, bracket, parameters = rest.partition("[")
    *classes, name = inner.split("::")
    return _legal(name + bracket + parameters) or module, _legal(".".join([module, *classes]))


def _legal(text: str) -> str:
    """Return text with the characters that XML cannot hold, escaped or not, as Python escapes."""
    return _ILLEGAL.sub(lambda match: escape(match.group()), text)
