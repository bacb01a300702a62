"""Classify a unit's one outcome from the end of its process and its report, without side effects."""

from harness.process.program_output import signal_name
from harness.process.supervisor_client import ProcessEnd
from harness.runner.report_file import TestOutcome, TestReport
from harness.runner.units import Outcome, Unit

PYTEST_EXITS = {
    0: (Outcome.PASSED, ""),
    1: (Outcome.FAILED, ""),
    2: (Outcome.FAILED, "a test or plugin interrupted pytest (exit 2)"),
    3: (Outcome.PYTEST_ERROR, "pytest had an internal error (exit 3)"),
    4: (Outcome.USAGE_ERROR, "pytest refused its arguments or a conftest (exit 4)"),
    5: (Outcome.NO_TESTS, ""),
}
BY_REASON = {
    "collect_timeout": Outcome.COLLECT_TIMEOUT,
    "timeout": Outcome.TIMED_OUT,
    "test_timeout": Outcome.TIMED_OUT,
    "cancelled": Outcome.INTERRUPTED,
    "killed": Outcome.INTERRUPTED,
}
LOST = {"timed_out": Outcome.TIMED_OUT, "exited_early": Outcome.EXITED_EARLY}
"""Outcomes by the way in which a test lost its own process; all others are crashes."""

DIED = " was being imported when pytest "
"""In the first line on a file whose import ended the session, before the output."""


def last_line(text: str) -> str:
    """The last line of a traceback, which names the error; "" for no text."""
    return text.strip().rpartition("\n")[2].removeprefix("E ").strip()


def classify_outcome(end: ProcessEnd, report: TestReport, timeout_s: float) -> tuple[Outcome, str]:
    """Return the outcome of an attempt, and one line with the reason (empty if it passed or only failed tests).

    An attempt that rlharness ended never passes. Neither does a process that ended before pytest had finished, or
    with an exit code that differs from the one that pytest reported.
    """
    outcome, why = _classify(end, report, timeout_s)
    if not report.unread or not outcome.is_failure:
        return outcome, why
    unread = f"its report could not be read completely: {report.unread}"
    return outcome, f"{why}; {unread}" if why else unread


def _classify(end: ProcessEnd, report: TestReport, timeout_s: float) -> tuple[Outcome, str]:
    running = next(iter(report.present), report.interrupted or "")  # which has an end if it had failed before
    during, pytest_exit = f" while {running} ran" if running else "", report.finished_exit
    if end.unkillable:
        return Outcome.UNKILLABLE, f"SIGKILL did not end {', '.join(end.unkillable)}"
    if end.reason == "supervisor_lost":
        why = f"the supervisor of this file was ended by a signal{during}; rlharness killed its processes"
        return Outcome.SUPERVISOR_LOST, why
    if end.reason == "test_timeout":
        limit = "" if report.running_limit_s is None else f" of {report.running_limit_s:g} s"
        return BY_REASON[end.reason], f"{running or 'a test'} ran longer than its own limit{limit}"
    if end.reason == "timeout":
        hung_after = not running and pytest_exit not in (None, 2)  # 2: it heeded our SIGINT
        late = "; pytest had finished, but its process had not exited" if hung_after else during
        return BY_REASON[end.reason], f"the file ran longer than {timeout_s:g} s{late}"
    if end.reason == "collect_timeout":
        return BY_REASON[end.reason], "the import of the file exceeded its time limit"
    if end.reason:
        return BY_REASON[end.reason], f"the run was {end.reason}{during}"
    if end.signal is not None:
        finished = " after pytest had finished" if pytest_exit is not None else during
        return Outcome.CRASHED, f"{signal_name(end.signal)}{finished}"
    if report.lost:
        first, more = report.lost[0], f", and {len(report.lost) - 1} more" if len(report.lost) > 1 else ""
        return LOST.get(first.how, Outcome.CRASHED), f"{first.reason} in {first.nodeid}{more}"
    if report.interrupted is not None:
        return Outcome.CRASHED, f"KeyboardInterrupt while {report.interrupted or 'no test'} ran"
    code = end.exit_code
    if pytest_exit is None and report.unread:  # the exit code decides; one that means success proves nothing
        if code in (1, 2, 3, 4):
            return PYTEST_EXITS[code]
        return Outcome.CRASHED, f"the process exited with {code}, and nothing shows that pytest had finished"
    if pytest_exit is None:
        if code in (3, 4) and not during:  # pytest gave up before its session began
            return PYTEST_EXITS[code]
        outcome = Outcome.CRASHED if code else Outcome.EXITED_EARLY
        return outcome, f"the process exited with {code} before pytest had finished{during}"
    for nodeid, text in report.collect_errors[:1]:
        return Outcome.COLLECT_ERROR, last_line(text) or nodeid
    if code != pytest_exit:
        why = f"pytest reported exit code {pytest_exit}, but the process exited with {code}"
        return (Outcome.FAILED if pytest_exit == 1 else Outcome.CRASHED), why
    num_failed = sum(each.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for each in report.ends.values())
    if code in (0, 5) and num_failed:  # a plugin or an exit hook rewrote pytest's status
        return Outcome.FAILED, f"pytest exited with {code} although {num_failed} tests had failed"
    if code in (0, 5) and running:  # pytest.exit() with a status that sounds well
        return Outcome.EXITED_EARLY, f"pytest ended with {code}{during}"
    if code == 5 and report.ends:  # the whole file skipped itself
        return Outcome.PASSED, ""
    outcome, why = PYTEST_EXITS.get(pytest_exit, (Outcome.PYTEST_ERROR, f"unknown exit code {code}"))
    refused = "; ".join(report.refused.splitlines()) if outcome is Outcome.USAGE_ERROR else ""
    return outcome, refused or why


def why_uncollected(unit: Unit) -> str:
    """Return one line on why a unit cannot be run; the text of one that hung ends with its stacks."""
    if unit.collect_timed_out:
        return "the import of the file exceeded its time limit"
    first = unit.collect_error.partition("\n")[0]
    return first if DIED in first else last_line(unit.collect_error)
