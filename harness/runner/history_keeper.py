"""The consumer of a run's events that records results in the history."""

from collections.abc import Mapping

from harness.core.test_outcomes import TestOutcome
from harness.runner.events import AttemptFailed, Event, TestFinished, TestStarted, UnitFinished
from harness.runner.history import MAX_TESTS, History
from harness.runner.stats import RunState
from harness.runner.trends import PastResult


class HistoryKeeper:
    """Records each file and its tests as the outcome of the file comes: an interrupted run has taught something too."""

    def __init__(self, history: History, sizes_bytes: Mapping[str, int], run_id: str) -> None:
        self._history = history
        self._sizes_bytes = sizes_bytes
        self._run_id = run_id
        self._tests: dict[str, dict[str, PastResult]] = {}
        """Results of the tests of each running file, by node id."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Remember the results of tests, and record them with their file."""
        match event:
            case TestStarted():
                self._remember(event.path, event.nodeid, TestOutcome.UNFINISHED, 0.0)
            case TestFinished():
                self._remember(event.path, event.nodeid, event.outcome, event.duration_s)
            case AttemptFailed(result=result) | UnitFinished(result=result):
                path = result.unit.path
                tests = self._tests.pop(path, {})
                # Of a file that runs again, the first attempt is the one that runs all of it.
                is_first = event.number == 1 if isinstance(event, AttemptFailed) else not result.attempts
                if result.duration_s and is_first:
                    size_bytes = self._sizes_bytes.get(path, 0)
                    self._history.record(result, size_bytes, run_id=self._run_id, tests=tests)

    def close(self) -> None:
        """The context closes the history."""

    def _remember(self, path: str, nodeid: str, outcome: str, duration_s: float) -> None:
        tests = self._tests.setdefault(path, {})
        if nodeid in tests or len(tests) < MAX_TESTS:
            tests[nodeid] = PastResult(self._run_id, str(outcome), duration_s)
