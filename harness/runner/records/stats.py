"""The run's state as a fold over its events, and what follows from it: closing figures and the exit code.

    events ──apply──> RunState ──> reporters (read only)
                              ├──> closing_figures ──> RunFinished
                              └──> exit_code

What cannot happen in a sound run (a GPU leased twice, a second outcome for one unit) is our own bug, and raises
AssertionError also under `python -O`.
"""

from collections import Counter
from copy import copy
from dataclasses import dataclass, replace

from harness.bits.exit_codes import ExitCode
from harness.runner.events import (
    AttemptFailed,
    AttemptSlow,
    AttemptStarted,
    AttemptTerminating,
    CancelRequested,
    CollectionFinished,
    Event,
    GpuQuarantined,
    GpuReadmitted,
    LeaseRefused,
    LeaseReturned,
    RunFinished,
    RunStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.report_file import TestOutcome
from harness.runner.schedule.packing import ShardPlan
from harness.runner.units import Outcome, Unit, UnitResult


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt that runs now."""

    path: str
    gpu_ids: tuple[str, ...]
    slot: int
    directory: str
    started_t: float
    """Seconds since the run began."""
    expected_s: float
    """Seconds that the plan expects for the whole file; 0 without an expectation."""
    test: str = ""
    """Node id of the test that runs now; empty before, between and after tests."""
    test_started_t: float = 0.0
    num_tests_done: int = 0
    terminating: str = ""
    """Why its process tree is being ended; empty while it is not."""


class RunState:
    """Everything the events so far say about a run.

    Attempts are in `running` (path -> Running), outcomes in `results` (path -> UnitResult, in the order in which
    units finished), GPUs out on lease in `leases` (GPU -> the paths that hold it). Only `apply` changes it.
    """

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.t = 0.0
        """Seconds since the run began, at the latest event."""
        self.units: dict[str, Unit] = {}
        self.shard: ShardPlan | None = None
        self.expected_s: dict[str, float] = {}
        self.planned_makespan_s = 0.0
        self.lower_bound_s = 0.0
        self.num_estimated = 0
        """Units whose expected seconds are an estimate."""
        self.running: dict[str, Running] = {}
        self.results: dict[str, UnitResult] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self.tests: Counter[TestOutcome] = Counter()
        self.num_deselected = 0
        self.num_accepted = 0
        """Leaning files that the configuration accepts."""
        self.leases: dict[str, set[str]] = {}
        self._leased_since: dict[str, float] = {}
        """By GPU, the start of the first of its leases that overlap."""
        self.quarantined: dict[str, GpuQuarantined] = {}
        self.cancel: CancelRequested | None = None
        """The latest request."""
        self.interrupted = False
        """Whether any request to cancel came from outside."""
        self.first_start_t: float | None = None
        self.last_end_t = 0.0
        self.sequential_s = 0.0
        self.expected_done_s = 0.0
        self.finished: RunFinished | None = None
        self._returned_gpu_s = 0.0

    @property
    def gpus(self) -> tuple[str, ...]:
        """The run's GPUs, one line each."""
        return self.started.gpus if self.started else ()

    @property
    def is_empty_shard(self) -> bool:
        """Whether this is a shard without units, of a suite that has some."""
        return not self.units and self.shard is not None and self.shard.num_suite_units > 0

    @property
    def num_done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def num_queued(self) -> int:
        return len(self.units) - self.num_done - len(self.running)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end so far."""
        return max(0.0, self.last_end_t - self.first_start_t) if self.first_start_t is not None else 0.0

    @property
    def leased_gpu_s(self) -> float:
        """GPU-seconds on lease so far; a GPU that has not come back counts up to the last end."""
        return self._returned_gpu_s + sum(max(0.0, self.last_end_t - since) for since in self._leased_since.values())

    @property
    def utilisation(self) -> float:
        """Leased GPU-seconds over GPUs x makespan, from 0 to 1; 0 without GPUs."""
        gpu_s = len(self.gpus) * self.makespan_s
        return self.leased_gpu_s / gpu_s if gpu_s > 0 else 0.0

    def is_failure(self, outcome: Outcome) -> bool:
        """Return whether units with this outcome make the run fail."""
        return outcome.is_failure and not (outcome is Outcome.LEANING and self.num_accepted == self.outcomes[outcome])

    def with_outcome(self, *outcomes: Outcome) -> list[UnitResult]:
        """The finished units that ended in one of `outcomes`, by path."""
        return sorted((r for r in self.results.values() if r.outcome in outcomes), key=lambda r: r.unit.path)

    def snapshot(self) -> "RunState":
        """A copy that a display in another thread can read: later events change nothing of what it shows."""
        state = copy(self)
        state.running, state.outcomes = dict(self.running), self.outcomes.copy()
        return state

    def remaining_s(self, now_t: float) -> float | None:
        """Seconds until the last unit ends, or None where nothing can be expected yet.

        The plan's makespan and the pace so far are weighed by the share of the work that is done: at the start the
        plan decides, at the end the pace. It is never less than what the longest running unit still wants.
        """
        expected_total_s = sum(self.expected_s.values())
        if self.first_start_t is None or expected_total_s <= 0:
            return None
        ran = [(attempt.expected_s, now_t - attempt.started_t) for attempt in self.running.values()]
        longest = max((expected - seconds for expected, seconds in ran), default=0.0)
        if self.cancel is not None:
            return max(0.0, longest)
        done = self.expected_done_s + sum(min(expected, seconds) for expected, seconds in ran)
        left = max(0.0, 1.0 - done / expected_total_s)
        elapsed = now_t - self.first_start_t
        return max(left * (elapsed + left * self.planned_makespan_s), longest, 0.0)

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        self.t = max(self.t, event.t)
        match event:
            case RunStarted():
                self.started = event
            case CollectionFinished():
                self._collected(event)
            case AttemptStarted():
                self._attempt_started(event)
            case TestStarted() | TestFinished() | AttemptTerminating():
                self._attempt_moved(event)
            case LeaseReturned():
                self._lease_ended(event.path, event.gpu_ids, event.t)
            case GpuQuarantined():
                self._lease_ended(event.path, (event.gpu_id,), event.t)
                self.quarantined[event.gpu_id] = event
            case GpuReadmitted():
                del self.quarantined[event.gpu_id]
            case LeaseRefused():
                del self.running[event.path]
            case AttemptFailed():
                del self.running[event.path]
                self.last_end_t = max(self.last_end_t, event.t)
            case UnitFinished():
                self._unit_finished(event.result, event.t)
            case CancelRequested():
                self.cancel = event
                self.interrupted |= event.interrupt
            case RunFinished():
                self.finished = event
            case AttemptSlow() | Event():  # heartbeats and dumps change nothing
                pass

    def check_sum(self) -> None:
        """Raise AssertionError unless each unit has exactly one outcome; what has one runs no more."""
        missing = self.units.keys() - self.results.keys()
        _hold(not missing, f"units without an outcome: {sorted(missing)}")

    def _collected(self, event: CollectionFinished) -> None:
        self.units = {unit.path: unit for unit in event.units}
        self.expected_s = dict(zip(self.units, event.expected_s, strict=True))
        self.planned_makespan_s = event.planned_makespan_s
        self.shard = event.shard
        self.lower_bound_s = event.lower_bound_s
        self.num_estimated = event.num_estimated

    def _attempt_started(self, event: AttemptStarted) -> None:
        path = event.path
        is_waiting = path in self.units and path not in self.results and path not in self.running
        _hold(is_waiting, f"{path} was started but was not waiting")
        for gpu_id in event.gpu_ids:
            holders = self.leases.setdefault(gpu_id, set())
            is_shared = all(self.units[each].need.shared for each in (path, *holders))
            _hold(not holders or is_shared, f"{gpu_id} was leased to {path} and {sorted(holders)}")
            _hold(gpu_id not in self.quarantined, f"{gpu_id} was leased to {path} while in quarantine")
            holders.add(path)
            self._leased_since.setdefault(gpu_id, event.t)
        if self.first_start_t is None:
            self.first_start_t = event.t
        self.running[path] = Running(path, event.gpu_ids, event.slot, event.directory, event.t, self.expected_s[path])

    def _attempt_moved(self, event: TestStarted | TestFinished | AttemptTerminating) -> None:
        attempt = self.running.get(event.path)
        if attempt is None:  # the tail of its report was read after it had ended
            return
        match event:
            case TestStarted():
                attempt = replace(attempt, test=event.nodeid, test_started_t=event.t)
            case TestFinished():
                attempt = replace(attempt, test="", num_tests_done=attempt.num_tests_done + 1)
            case AttemptTerminating():
                attempt = replace(attempt, terminating=event.reason)
        self.running[event.path] = attempt

    def _lease_ended(self, path: str, gpu_ids: tuple[str, ...], t: float) -> None:
        for gpu_id in gpu_ids:
            holders = self.leases.get(gpu_id, set())
            _hold(path in holders, f"{path} gave {gpu_id} back, which {', '.join(sorted(holders)) or 'no unit'} holds")
            holders.remove(path)
            if not holders:
                del self.leases[gpu_id]
                self._returned_gpu_s += t - self._leased_since.pop(gpu_id)
            self.last_end_t = max(self.last_end_t, t)

    def _unit_finished(self, result: UnitResult, t: float) -> None:
        path = result.unit.path
        _hold(path in self.units, f"{path} has an outcome but is not a unit of this run")
        _hold(path not in self.results, f"{path} has a second outcome, {result.outcome.value}")
        if self.running.pop(path, None) is not None:
            self.last_end_t = max(self.last_end_t, t)
        self.results[path] = result
        self.outcomes[result.outcome] += 1
        self.tests.update(result.tests.counts)
        self.num_deselected += result.num_deselected
        self.num_accepted += result.is_accepted
        self.sequential_s += 0.0 if result.resumed_from else result.duration_s
        self.expected_done_s += self.expected_s[path]


def closing_figures(state: RunState, *, t: float, exit_code: ExitCode, lower_bound_s: float) -> RunFinished:
    """The run's last event, at `t` seconds; the bound is the caller's, from the durations as measured."""
    return RunFinished(
        t=t,
        exit_code=int(exit_code),
        wall_s=t,
        sequential_s=state.sequential_s,
        utilisation=state.utilisation,
        lower_bound_s=lower_bound_s,
        makespan_s=state.makespan_s,
    )


def exit_code(
    state: RunState, *, allow_missing_gpus: bool, internal_error: bool = False, session_failed: bool = False
) -> ExitCode:
    """The exit code of a run; what stands higher here wins over what stands lower.

    A bug of ours wins: nothing else that is said of such a run can be relied on. Where pytest refused its arguments and
    nothing else failed, the code is pytest's own for that. A unit that did not run to its end,
    with neither a failure nor a lack of GPUs to explain it, makes the run an interrupted one: nothing that was left
    out may end as 0.
    """
    outcomes = state.outcomes
    not_run = state.with_outcome(Outcome.NOT_RUN)
    num_wanting = sum(result.for_want_of_gpus for result in not_run)
    ladder = (
        (internal_error, ExitCode.INTERNAL_ERROR),
        (state.interrupted, ExitCode.INTERRUPTED),
        (any(map(state.is_failure, outcomes.keys() - {Outcome.USAGE_ERROR})), ExitCode.TESTS_FAILED),
        (session_failed, ExitCode.TESTS_FAILED),
        (outcomes[Outcome.USAGE_ERROR], ExitCode.USAGE_ERROR),
        (outcomes[Outcome.INTERRUPTED] or len(not_run) > num_wanting, ExitCode.INTERRUPTED),
        (outcomes[Outcome.NO_TESTS] == len(state.units) and not state.is_empty_shard, ExitCode.NOTHING_COLLECTED),
        (num_wanting and not allow_missing_gpus, ExitCode.UNITS_NOT_RUN),
        (state.quarantined, ExitCode.GPU_QUARANTINED),
    )
    return next((code for holds, code in ladder if holds), ExitCode.OK)


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
