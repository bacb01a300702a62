"""The judgement over the whole space of ends and reports."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.process.supervisor_client import ProcessEnd
from harness.runner.outcomes import classify_outcome
from harness.runner.report_file import LostTest, TestEnd, TestOutcome, TestReport
from harness.runner.units import Outcome

REASONS = ("", "timeout", "test_timeout", "collect_timeout", "cancelled", "killed", "supervisor_lost")
TESTS = st.sampled_from(["", "tests/test_a.py::test_x"])
CODES = st.sampled_from([0, 0, 1, 2, 3, 4, 5, 5, 7, 255])
THOROUGH = settings(max_examples=5 * settings().max_examples)


@st.composite
def ends(draw: st.DrawFn) -> ProcessEnd:
    """Every end a supervisor can tell of: an exit code, a signal, or neither where it was lost."""
    reason = draw(st.just("") | st.sampled_from(REASONS))
    code, signal = draw(st.tuples(CODES, st.none()) | st.tuples(st.none(), st.integers(1, 64)))
    if reason == "supervisor_lost":
        code = signal = None
    left, unkillable = (draw(st.sampled_from([(), (), (), ("7 D python", "8 D python")])) for _ in range(2))
    return ProcessEnd(code, signal, reason, left, unkillable, duration_s=1.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ProcessEnd, TestReport]:
    """An end and a report; every second time pytest had announced that very exit status."""
    end = draw(ends())
    announced = draw(st.sampled_from([end.exit_code, draw(st.none() | CODES)]))
    error = draw(st.sampled_from(["", "", "ImportError: no module named x"]))
    return end, said(announced, draw(TESTS), draw(st.integers(0, 3)), error, draw(st.integers(0, 3)))


@THOROUGH
@given(cases())
def test_every_end_has_one_outcome_and_says_why(case: tuple[ProcessEnd, TestReport]) -> None:
    end, report = case
    outcome, why = classify_outcome(end, report, 60.0)
    assert isinstance(outcome, Outcome)
    assert "\n" not in why
    assert why or outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.NO_TESTS)
    assert outcome is not Outcome.NOT_RUN, "it did run"


@pytest.mark.full
@THOROUGH
@given(cases())
def test_a_pass_needs_everything_to_be_right(case: tuple[ProcessEnd, TestReport]) -> None:
    end, report = case
    outcome, _ = classify_outcome(end, report, 60.0)
    if outcome in (Outcome.PASSED, Outcome.NO_TESTS):
        assert (end.reason, end.signal, end.unkillable) == ("", None, ())
        assert end.exit_code == report.finished_exit
        assert end.exit_code in (0, 5)
        failed = [each for each in report.ends.values() if each.outcome is TestOutcome.FAILED]
        assert (report.collect_errors, failed, report.running) == ((), [], ())


@THOROUGH
@given(cases())
def test_what_was_ended_from_outside_is_told_so(case: tuple[ProcessEnd, TestReport]) -> None:
    end, report = case
    outcome, _ = classify_outcome(end, report, 60.0)
    assert (outcome is Outcome.UNKILLABLE) == bool(end.unkillable)
    if end.unkillable:
        return
    expected = {
        "timeout": Outcome.TIMED_OUT,
        "test_timeout": Outcome.TIMED_OUT,
        "collect_timeout": Outcome.COLLECT_TIMEOUT,
        "cancelled": Outcome.INTERRUPTED,
        "killed": Outcome.INTERRUPTED,
        "supervisor_lost": Outcome.SUPERVISOR_LOST,
    }
    if end.reason:
        assert outcome is expected[end.reason]
    else:
        assert outcome not in expected.values()
        assert end.signal is None or outcome is Outcome.CRASHED


def ended(exit_code: int | None = None, signal: int | None = None, reason: str = "") -> ProcessEnd:
    return ProcessEnd(exit_code, signal, reason, (), (), duration_s=1.0)


def said(
    pytest_exit: int | None, running: str = "", num_ended: int = 1, error: str = "", num_failed: int = 0
) -> TestReport:
    outcomes = [TestOutcome.FAILED] * num_failed + [TestOutcome.PASSED] * (num_ended - num_failed)
    ends = {f"a::{number}": TestEnd(outcome, 0.0, "", "") for number, outcome in enumerate(outcomes)}
    errors = (("a", error),) if error else ()
    return TestReport(finished_exit=pytest_exit, running=(running,) * bool(running), ends=ends, collect_errors=errors)


X, NOT_DONE = "a::x", "before pytest had finished"
EXAMPLES: list[tuple[ProcessEnd, TestReport, str, str]] = [
    (ended(0), said(0), "passed", ""),
    (ended(1), said(1, num_failed=1), "failed", ""),
    (ended(2), said(2), "failed", "a test or plugin interrupted pytest (exit 2)"),
    (ended(2), replace(said(2, X), interrupted=X), "crashed", "KeyboardInterrupt while a::x ran"),
    (ended(2), replace(said(2), interrupted=""), "crashed", "KeyboardInterrupt while no test ran"),
    (
        ended(2, reason="cancelled"),
        replace(said(2), interrupted=X),
        "interrupted",
        "the run was cancelled while a::x ran",
    ),
    (ended(2), said(2, error="ImportError: x"), "collect_error", "ImportError: x"),
    (ended(3), said(3), "pytest_error", "pytest had an internal error (exit 3)"),
    (ended(4), said(None, num_ended=0), "usage_error", "pytest refused its arguments or a conftest (exit 4)"),
    (ended(5), said(5, num_ended=0), "no_tests", ""),
    (ended(5), said(5, num_ended=1), "passed", ""),
    (ended(4), replace(said(4), refused="not found: a"), "usage_error", "not found: a"),
    (ended(4), replace(said(4, error="No x"), refused="not found: a"), "collect_error", "No x"),
    (ended(3), replace(said(3), refused="of old"), "pytest_error", "pytest had an internal error (exit 3)"),
    (ended(99), said(99), "pytest_error", "unknown exit code 99"),
    (ended(0), said(0, num_failed=2), "failed", "pytest exited with 0 although 2 tests had failed"),
    (ended(0), said(0, X), "exited_early", "pytest ended with 0 while a::x ran"),
    (ended(0), said(None), "exited_early", f"the process exited with 0 {NOT_DONE}"),
    (ended(0), said(None, X), "exited_early", f"the process exited with 0 {NOT_DONE} while a::x ran"),
    (ended(3), said(None, X), "crashed", f"the process exited with 3 {NOT_DONE} while a::x ran"),
    (ended(7), said(0), "crashed", "pytest reported exit code 0, but the process exited with 7"),
    (ended(0), said(1, num_failed=1), "failed", "pytest reported exit code 1, but the process exited with 0"),
    (ended(signal=11), said(None, X), "crashed", "SIGSEGV while a::x ran"),
    (ended(signal=9), said(0), "crashed", "SIGKILL after pytest had finished"),
    (ended(signal=40), said(None), "crashed", "signal 40"),
    (ended(2, reason="timeout"), said(2, X), "timed_out", "the file ran longer than 60 s while a::x ran"),
    (ended(2, reason="timeout"), said(2), "timed_out", "the file ran longer than 60 s"),
    (ended(2, reason="test_timeout"), said(None, X), "timed_out", "a::x ran longer than its own limit"),
    (ended(signal=9, reason="killed"), said(None, X), "interrupted", "the run was killed while a::x ran"),
]


@pytest.mark.parametrize(("end", "report", "outcome", "why"), EXAMPLES)
def test_examples(end: ProcessEnd, report: TestReport, outcome: str, why: str) -> None:
    assert classify_outcome(end, report, 60.0) == (Outcome(outcome), why)


def test_a_test_that_its_own_process_lost_is_named() -> None:
    lost = replace(said(0), lost=(LostTest(X, "exited_early", "exit code 0"),))
    assert classify_outcome(ended(0), lost, 60.0) == (Outcome.EXITED_EARLY, "exit code 0 in a::x")


def test_a_timeout_after_pytest_had_finished_says_so() -> None:
    _, why = classify_outcome(ended(signal=9, reason="timeout"), said(0), 90.0)
    assert why == "the file ran longer than 90 s; pytest had finished, but its process had not exited"


def test_unkillable_processes_are_named() -> None:
    end = ProcessEnd(0, None, "", (), ("7 D python", "8 D python"), 1.0)
    assert classify_outcome(end, said(0), 60.0) == (Outcome.UNKILLABLE, "SIGKILL did not end 7 D python, 8 D python")
