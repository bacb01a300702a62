"""The consumer of a run's events that records results in the history."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.runner.events import AttemptFailed, Event, TestFinished, TestStarted, UnitFinished
from harness.runner.gpu_memory import merge_uses
from harness.runner.records.history import MAX_TESTS, RAN_TO_THE_END, History
from harness.runner.records.stats import RunState
from harness.runner.records.trends import PastResult
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, UnitResult


class HistoryKeeper:
    """Records each file and its tests as the outcome of the file comes: an interrupted run has taught something too."""

    def __init__(self, history: History, sizes_bytes: Mapping[str, int], run_id: str) -> None:
        self._history = history
        self._sizes_bytes = sizes_bytes
        self._run_id = run_id
        self._tests: dict[str, dict[str, PastResult]] = {}
        """Results of the tests of each running unit, by node id."""
        self._parts: dict[str, list[tuple[UnitResult, float]]] = {}
        """Results of the parts of each file so far, with the seconds of their tests."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Remember the results of tests, and record them with their file."""
        match event:
            case TestStarted():
                self._remember(event.path, event.nodeid, TestOutcome.UNFINISHED, 0.0)
            case TestFinished():
                self._remember(event.path, event.nodeid, event.outcome, event.duration_s)
            case AttemptFailed(is_rest=True):
                pass  # its tests and those of the rest are recorded together
            case UnitFinished(result=UnitResult(resumed_from=str(run_id))) if run_id:
                pass  # an earlier run has recorded it
            case AttemptFailed(result=result) | UnitFinished(result=result):
                tests = self._tests.pop(result.unit.path, {})
                for nodeid, peak_bytes in (result.gpu_memory.tests if result.gpu_memory is not None else {}).items():
                    if nodeid in tests:
                        tests[nodeid] = replace(tests[nodeid], peak_bytes=peak_bytes)
                # Of a file that runs again, the first attempt is the one that runs all of it.
                is_first = (
                    event.number == 1
                    if isinstance(event, AttemptFailed)
                    else all(each.is_rest for each in result.attempts)
                )
                if not is_first:
                    return
                if result.unit.part:
                    self._history.record_tests(tests)
                    self._finish_part(result, sum(each.duration_s for each in tests.values()))
                elif result.duration_s:
                    self._record(result, tests)

    def _finish_part(self, result: UnitResult, tests_s: float) -> None:
        """Once every part has ended, record them as one result of the file."""
        part, file = result.unit.part, result.unit.file_path
        parts = self._parts.setdefault(file, [])
        parts.append((result, tests_s))
        if part is not None and len(parts) == part.count and all(each.duration_s for each, _ in parts):
            self._record(merge_parts(parts), {})

    def _record(self, result: UnitResult, tests: Mapping[str, PastResult]) -> None:
        size_bytes = self._sizes_bytes.get(result.unit.path, 0)
        self._history.record(result, size_bytes, run_id=self._run_id, tests=tests)

    def close(self) -> None:
        """The context closes the history."""

    def _remember(self, path: str, nodeid: str, outcome: str, duration_s: float) -> None:
        tests = self._tests.setdefault(path, {})
        if nodeid in tests or len(tests) < MAX_TESTS:
            tests[nodeid] = PastResult(self._run_id, str(outcome), duration_s)


def merge_parts(parts: Sequence[tuple[UnitResult, float]]) -> UnitResult:
    """Return the result of a file from those of all its parts, each with the seconds of its tests.

    The first part that did not run to its end decides the outcome. The duration is that of all tests, and of the
    longest rest of a part: each part starts pytest and imports the file, which happens once for a whole file.
    """
    results = [result for result, _ in parts]
    outcomes = [result.outcome for result in results]
    ended = (*RAN_TO_THE_END, Outcome.FLAKY)
    ended_early = [outcome for outcome in outcomes if outcome not in ended]
    order = (*ended_early, Outcome.FAILED, Outcome.LEANING, Outcome.FLAKY, Outcome.PASSED, Outcome.NO_TESTS)
    rests_s = [max(0.0, result.duration_s - tests_s) for result, tests_s in parts]
    shown = next((result for result in results if result.need_disagrees), results[0])
    return replace(
        shown,
        unit=replace(shown.unit, path=shown.unit.file_path, file="", part=None),
        outcome=next(outcome for outcome in order if outcome in outcomes),
        duration_s=sum(result.duration_s for result in results) - sum(rests_s) + max(rests_s),
        gpu_memory=merge_uses([result.gpu_memory for result in results]),
    )
