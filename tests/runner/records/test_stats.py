import pytest

from harness.bits.exit_codes import ExitCode
from harness.runner.events import (
    AttemptStarted,
    AttemptTerminating,
    CancelRequested,
    CollectionFinished,
    Event,
    GpuQuarantined,
    LeaseReturned,
    RunStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.need import Need
from harness.runner.records.stats import RunState, exit_code
from harness.runner.report_file import TestCounts, TestOutcome
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult

GPUS = ("SIM-0", "SIM-1", "SIM-2", "SIM-3")


def unit(path: str, num_gpus: int = 0) -> Unit:
    return Unit(path, Need(num_gpus), NeedSource.IMPORT)


def begin(num_gpus: int = 4) -> RunStarted:
    lines = tuple(f"{index} pretended {gpu_id}" for index, gpu_id in enumerate(GPUS[:num_gpus]))
    return RunStarted(0.0, "run-1", "/runs/run-1", lines, (), (), "subreaper", 2)


def collected(*units: Unit, expected_s: float = 10.0) -> CollectionFinished:
    return CollectionFinished(1.0, units, (expected_s,) * len(units), 20.0, 15.0, 1.0)


def folded(*events: Event) -> RunState:
    state = RunState()
    for event in events:
        state.apply(event)
    return state


def ended(path: str, outcome: Outcome, *, want: bool = False) -> UnitFinished:
    return UnitFinished(2.0, UnitResult(unit(path), outcome, for_want_of_gpus=want))


def test_an_attempt_is_followed_from_start_to_outcome() -> None:
    state = folded(begin(), collected(unit("a.py", 2), unit("b.py")))
    assert state.num_queued == 2
    state.apply(AttemptStarted(2.0, "a.py", GPUS[:2], 0, "/d"))
    state.apply(TestStarted(3.0, "a.py", "a.py::test_x", None))
    attempt = state.running["a.py"]
    assert (attempt.test, attempt.test_started_t, attempt.num_tests_done) == ("a.py::test_x", 3.0, 0)
    state.apply(TestFinished(4.0, "a.py", "a.py::test_x", "passed", 1.0))
    state.apply(AttemptTerminating(5.0, "a.py", "timeout"))
    attempt = state.running["a.py"]
    assert (attempt.test, attempt.num_tests_done, attempt.terminating) == ("", 1, "timeout")
    assert (state.num_queued, len(state.leases)) == (1, 2)
    result = UnitResult(unit("a.py", 2), Outcome.TIMED_OUT, duration_s=4.0, tests=TestCounts({TestOutcome.PASSED: 1}))
    state.apply(UnitFinished(6.0, result))
    state.apply(LeaseReturned(7.0, "a.py", GPUS[:2]))
    assert state.running == {}
    assert state.leases == {}
    assert state.with_outcome(Outcome.TIMED_OUT) == [result]
    assert state.tests[TestOutcome.PASSED] == 1
    assert state.leased_gpu_s == 10.0
    assert state.makespan_s == 5.0
    assert state.utilisation == 10.0 / (4 * 5.0)


def test_a_quarantined_card_stops_counting_and_cannot_come_back() -> None:
    state = folded(begin(2), collected(unit("a.py", 2)), AttemptStarted(2.0, "a.py", GPUS[:2], 0, "/d"))
    state.apply(UnitFinished(4.0, UnitResult(unit("a.py", 2), Outcome.PASSED, duration_s=2.0)))
    state.apply(LeaseReturned(5.0, "a.py", GPUS[:1]))
    state.apply(GpuQuarantined(6.0, "a.py", GPUS[1], "29 GB still held"))
    assert state.leased_gpu_s == 3.0 + 4.0
    assert list(state.quarantined) == [GPUS[1]]
    with pytest.raises(AssertionError, match="SIM-1"):
        state.apply(LeaseReturned(7.0, "a.py", GPUS[1:2]))


def test_a_card_that_never_came_back_counts_up_to_the_last_end() -> None:
    state = folded(begin(1), collected(unit("a.py", 1)), AttemptStarted(2.0, "a.py", GPUS[:1], 0, "/d"))
    state.apply(UnitFinished(6.0, UnitResult(unit("a.py", 1), Outcome.UNKILLABLE, duration_s=4.0)))
    assert state.utilisation == 1.0


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([ended("a.py", Outcome.PASSED), ended("a.py", Outcome.FAILED)], "second outcome"),
        ([ended("z.py", Outcome.PASSED)], "not a unit"),
        ([AttemptStarted(2.0, "z.py", (), 0, "/d")], "was not waiting"),
        ([AttemptStarted(2.0, "a.py", (), 0, "/d"), AttemptStarted(2.0, "a.py", (), 1, "/e")], "was not waiting"),
        (
            [AttemptStarted(2.0, "a.py", GPUS[:2], 0, "/d"), AttemptStarted(2.0, "b.py", GPUS[1:3], 1, "/e")],
            "SIM-1 was leased",
        ),
        ([AttemptStarted(2.0, "a.py", GPUS[:1], 0, "/d"), LeaseReturned(3.0, "b.py", GPUS[:1])], "a.py holds"),
    ],
)
def test_what_cannot_happen_raises(events: list[Event], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        folded(begin(), collected(unit("a.py"), unit("b.py")), *events)


def test_the_sum_is_checked() -> None:
    state = folded(begin(), collected(unit("a.py"), unit("b.py")), ended("a.py", Outcome.PASSED))
    with pytest.raises(AssertionError, match=r"without an outcome: \['b.py'\]"):
        state.check_sum()
    state.apply(ended("b.py", Outcome.NOT_RUN))
    state.check_sum()


STOP = CancelRequested(2.0, "SIGINT", kill=False)
MAXFAIL = CancelRequested(2.0, "1 failure (--maxfail 1)", kill=False, interrupt=False)
BAD_CARD = [
    AttemptStarted(1.5, "a.py", GPUS[:1], 0, "/d"),
    GpuQuarantined(1.6, "a.py", GPUS[0], "29 GB still held"),
]
A, B = "a.py", "b.py"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([ended(A, Outcome.PASSED), ended(B, Outcome.PASSED)], ExitCode.OK),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.NO_TESTS)], ExitCode.OK),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.FAILED)], ExitCode.TESTS_FAILED),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.USAGE_ERROR)], ExitCode.USAGE_ERROR),
        ([ended(A, Outcome.FAILED), ended(B, Outcome.USAGE_ERROR)], ExitCode.TESTS_FAILED),
        ([MAXFAIL, ended(A, Outcome.USAGE_ERROR), ended(B, Outcome.NOT_RUN)], ExitCode.USAGE_ERROR),
        ([STOP, ended(A, Outcome.USAGE_ERROR), ended(B, Outcome.NOT_RUN)], ExitCode.INTERRUPTED),
        ([ended(A, Outcome.NO_TESTS), ended(B, Outcome.NO_TESTS)], ExitCode.NOTHING_COLLECTED),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.NOT_RUN, want=True)], ExitCode.UNITS_NOT_RUN),
        ([ended(A, Outcome.FAILED), ended(B, Outcome.NOT_RUN, want=True)], ExitCode.TESTS_FAILED),
        ([*BAD_CARD, ended(A, Outcome.PASSED), ended(B, Outcome.PASSED)], ExitCode.GPU_QUARANTINED),
        ([*BAD_CARD, ended(A, Outcome.PASSED), ended(B, Outcome.NOT_RUN, want=True)], ExitCode.UNITS_NOT_RUN),
        ([*BAD_CARD, ended(A, Outcome.CRASHED), ended(B, Outcome.PASSED)], ExitCode.TESTS_FAILED),
        ([STOP, ended(A, Outcome.PASSED), ended(B, Outcome.PASSED)], ExitCode.INTERRUPTED),
        ([STOP, ended(A, Outcome.FAILED), ended(B, Outcome.NOT_RUN)], ExitCode.INTERRUPTED),
        ([STOP, MAXFAIL, ended(A, Outcome.FAILED), ended(B, Outcome.NOT_RUN)], ExitCode.INTERRUPTED),
        ([MAXFAIL, ended(A, Outcome.FAILED), ended(B, Outcome.NOT_RUN)], ExitCode.TESTS_FAILED),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.NOT_RUN)], ExitCode.INTERRUPTED),
        ([ended(A, Outcome.PASSED), ended(B, Outcome.INTERRUPTED)], ExitCode.INTERRUPTED),
    ],
)
def test_exit_codes_by_precedence(events: list[Event], expected: ExitCode) -> None:
    state = folded(begin(), collected(unit(A), unit(B)), *events)
    assert exit_code(state, allow_missing_gpus=False) is expected


@pytest.mark.parametrize("outcome", Outcome)
def test_a_run_ends_with_0_only_where_every_file_was_fine(outcome: Outcome) -> None:
    state = folded(begin(), collected(unit(A), unit(B)), ended(A, Outcome.PASSED), ended(B, outcome))
    is_fine = outcome in (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS)
    assert (exit_code(state, allow_missing_gpus=False) is ExitCode.OK) is is_fine


def test_an_internal_error_stands_above_everything() -> None:
    failed = folded(begin(), collected(unit(A)), ended(A, Outcome.FAILED))
    assert exit_code(failed, allow_missing_gpus=False, internal_error=True) is ExitCode.INTERNAL_ERROR
    failed.apply(STOP)
    assert exit_code(failed, allow_missing_gpus=False, internal_error=True) is ExitCode.INTERNAL_ERROR
    assert exit_code(failed, allow_missing_gpus=False) is ExitCode.INTERRUPTED


def test_missing_cards_can_be_allowed_and_quarantine_still_shows() -> None:
    wanting = [ended(A, Outcome.PASSED), ended(B, Outcome.NOT_RUN, want=True)]
    state = folded(begin(), collected(unit(A), unit(B)), *wanting)
    assert exit_code(state, allow_missing_gpus=True) is ExitCode.OK
    state = folded(begin(), collected(unit(A), unit(B)), *BAD_CARD, *wanting)
    assert exit_code(state, allow_missing_gpus=True) is ExitCode.GPU_QUARANTINED


def test_no_units_is_nothing_collected() -> None:
    assert exit_code(folded(begin(), collected()), allow_missing_gpus=False) is ExitCode.NOTHING_COLLECTED


def test_remaining_time_follows_the_plan_first_and_the_pace_later() -> None:
    state = folded(begin(), collected(unit(A), unit(B)))
    assert state.remaining_s(2.0) is None
    state.apply(AttemptStarted(2.0, A, (), 0, "/d"))
    assert state.remaining_s(2.0) == 20.0  # the planned makespan
    assert state.remaining_s(32.0) == 0.5 * (30.0 + 0.5 * 20.0)  # late: done as far as was expected
    state.apply(UnitFinished(42.0, UnitResult(unit(A), Outcome.PASSED, duration_s=40.0)))
    assert state.remaining_s(42.0) == 0.5 * (40.0 + 0.5 * 20.0)
    state.apply(STOP)
    assert state.remaining_s(42.0) == 0.0
