"""Classify a unit's one outcome from the end of its process and its report, without side effects."""

import signal
from dataclasses import dataclass

from harness.process.supervisor_client import ProcessEnd
from harness.runner.units import Outcome

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


@dataclass(frozen=True, slots=True)
class Reported:
    """The facts of a report that `classify_outcome` uses."""

    pytest_exit: int | None
    """The exit status pytest itself announced; None when it never finished."""
    running: str
    """The test that had begun and not ended; empty for none."""
    num_ended: int
    collect_error: str
    """Most informative line of a collection error; empty if there is no error."""
    num_failed: int = 0
    """Tests that failed or had an error."""
    refused: str = ""
    """Message of pytest about arguments that it refused."""
    unread: str = ""
    """Why the report, or the rest of it, could not be read; empty where all was."""
    lost: str = ""
    """The first test whose own process ended early; empty for none. `lost_how` is a key of LOST."""
    lost_how: str = ""
    lost_why: str = ""
    num_lost: int = 0
    interrupted: str | None = None
    """The test that raised KeyboardInterrupt; empty if none ran, None without KeyboardInterrupt."""
    running_limit_s: float | None = None
    """Limit of the running test; None where it has none of its own."""


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify_outcome(end: ProcessEnd, reported: Reported, timeout_s: float) -> tuple[Outcome, str]:
    """Return the outcome of an attempt, and one line with the reason (empty if it passed or only failed tests).

    An attempt that rlharness ended never passes. Neither does a process that ended before pytest had finished, or
    with an exit code that differs from the one that pytest reported.
    """
    outcome, why = _classify(end, reported, timeout_s)
    if not reported.unread or not outcome.is_failure:
        return outcome, why
    unread = f"its report could not be read completely: {reported.unread}"
    return outcome, f"{why}; {unread}" if why else unread


def _classify(end: ProcessEnd, reported: Reported, timeout_s: float) -> tuple[Outcome, str]:
    during = f" while {reported.running} ran" if reported.running else ""
    if end.unkillable:
        return Outcome.UNKILLABLE, f"SIGKILL did not end {', '.join(end.unkillable)}"
    if end.reason == "supervisor_lost":
        why = f"the supervisor of this file was ended by a signal{during}; rlharness killed its processes"
        return Outcome.SUPERVISOR_LOST, why
    if end.reason:
        return BY_REASON[end.reason], _why_ended(end.reason, reported, timeout_s)
    if end.signal is not None:
        finished = " after pytest had finished" if reported.pytest_exit is not None else during
        return Outcome.CRASHED, f"{signal_name(end.signal)}{finished}"
    if reported.lost:
        more = f", and {reported.num_lost - 1} more" if reported.num_lost > 1 else ""
        outcome = LOST.get(reported.lost_how, Outcome.CRASHED)
        return outcome, f"{reported.lost_why} in {reported.lost}{more}"
    if reported.interrupted is not None:
        return Outcome.CRASHED, f"KeyboardInterrupt while {reported.interrupted or 'no test'} ran"
    if reported.pytest_exit is None:
        return _without_report(end.exit_code) if reported.unread else _without_finish(end.exit_code, during)
    if reported.collect_error:
        return Outcome.COLLECT_ERROR, reported.collect_error
    if end.exit_code != reported.pytest_exit:
        why = f"pytest reported exit code {reported.pytest_exit}, but the process exited with {end.exit_code}"
        return (Outcome.FAILED if reported.pytest_exit == 1 else Outcome.CRASHED), why
    if end.exit_code in (0, 5) and reported.num_failed:  # a plugin or an exit hook rewrote pytest's status
        return Outcome.FAILED, f"pytest exited with {end.exit_code} although {reported.num_failed} tests had failed"
    if end.exit_code in (0, 5) and reported.running:  # pytest.exit() with a status that sounds well
        return Outcome.EXITED_EARLY, f"pytest ended with {end.exit_code}{during}"
    if end.exit_code == 5 and reported.num_ended:  # the whole file skipped itself
        return Outcome.PASSED, ""
    outcome, why = PYTEST_EXITS.get(end.exit_code, (Outcome.PYTEST_ERROR, f"unknown exit code {end.exit_code}"))
    return outcome, reported.refused if reported.refused and outcome is Outcome.USAGE_ERROR else why


def _why_ended(reason: str, reported: Reported, timeout_s: float) -> str:
    during = f" while {reported.running} ran" if reported.running else ""
    if reason == "test_timeout":
        limit = "" if reported.running_limit_s is None else f" of {reported.running_limit_s:g} s"
        return f"{reported.running or 'a test'} ran longer than its own limit{limit}"
    if reason == "timeout":
        hung_after = not reported.running and reported.pytest_exit not in (None, 2)  # 2: it heeded our SIGINT
        late = "; pytest had finished, but its process had not exited" if hung_after else during
        return f"the file ran longer than {timeout_s:g} s{late}"
    if reason == "collect_timeout":
        return "the import of the file exceeded its time limit"
    return f"the run was {'cancelled' if reason == 'cancelled' else 'killed'}{during}"


def _without_finish(exit_code: int | None, during: str) -> tuple[Outcome, str]:
    if exit_code == 0:
        return Outcome.EXITED_EARLY, f"the process exited with 0 before pytest had finished{during}"
    if exit_code in (3, 4) and not during:  # pytest gave up before its session began
        return PYTEST_EXITS[exit_code]
    return Outcome.CRASHED, f"the process exited with {exit_code} before pytest had finished{during}"


def _without_report(exit_code: int | None) -> tuple[Outcome, str]:
    """Where pytest's last word could not be read: the exit code decides, and one that means success is not believed."""
    if exit_code in (1, 2, 3, 4):
        return PYTEST_EXITS[exit_code]
    return Outcome.CRASHED, f"the process exited with {exit_code}, and nothing shows that pytest had finished"
