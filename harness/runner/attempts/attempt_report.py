"""The report of an attempt that has ended: read, put back where a test replaced it, and reduced to facts."""

from harness.bits.errors import ReportError
from harness.process.growing_file import NOTHING
from harness.runner.outcomes import Reported
from harness.runner.report_file import ReportTail, TestReport
from harness.runner.test_outcomes import TestOutcome


def read_attempt_report(tail: ReportTail) -> TestReport:
    """What the report of an attempt says; nothing, and the reason, where it cannot be read."""
    try:
        return tail.report()
    except (ReportError, OSError) as error:
        return TestReport(unread=" ".join(str(error).split()))


def put_back(tail: ReportTail, path: str) -> list[str]:
    """A note where the report's name leads to something else, and write the report back if possible."""
    found = tail.file.replaced_by
    if not found:
        return []
    did = "removed" if found == NOTHING else "replaced"
    what = "" if found == NOTHING else f" by {found}"
    note = f"{path} {did} its report {tail.file.path}{what}: the outcomes come from what pytest wrote to the original"
    try:
        tail.file.put_back()
    except OSError as error:
        return [f"{note}; rlharness could not restore the report: {error.strerror}"]
    return [f"{note}; rlharness restored the report"]


def last_line(text: str) -> str:
    """The last line of a traceback, which names the error; "" for no text."""
    return text.strip().rpartition("\n")[2].removeprefix("E ").strip()


def reported(report: TestReport) -> Reported:
    """Return the facts of a report that decide an outcome."""
    errors = [last_line(text) or nodeid for nodeid, text in report.collect_errors]
    return Reported(
        pytest_exit=report.finished_exit,
        running=report.running[0] if report.running else "",
        num_ended=len(report.ends),
        lost=report.lost[0].nodeid if report.lost else "",
        lost_how=report.lost[0].how if report.lost else "",
        lost_why=report.lost[0].reason if report.lost else "",
        num_lost=len(report.lost),
        interrupted=report.interrupted,
        running_limit_s=report.running_limit_s,
        collect_error=errors[0] if errors else "",
        num_failed=sum(e.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for e in report.ends.values()),
        refused="; ".join(report.refused.splitlines()),
        unread=report.unread,
    )
