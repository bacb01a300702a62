"""The record of a run, `events.jsonl`, read back: each file with its time, its GPUs, its outcome and its tests.

The tests of the run can do anything to the file: what is read of it has limits, each value is checked, and a line that
is no event is passed over and counted. So the record of a run that was killed can be read up to its last whole line.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bits.files import MALFORMED, MAX_BYTES
from harness.process.growing_file import GrowingFile, GrowingLines
from harness.runner.events import Event, to_json_line
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured
from harness.runner.isolation_notes import IsolationCode, IsolationNote, NotForked
from harness.runner.need import Need
from harness.runner.records.trends import MAX_PEAK_BYTES
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome

RECORD = "events.jsonl"
"""Name of the record in the directory of a run."""
PAGE = "run.html"
"""Name of the page in the directory of a run."""
NO_NEED = Need()
MAX_S = 1e8
"""Three years; no run takes longer."""


@dataclass(frozen=True, slots=True)
class TestSpan:
    """One test in the time of its run."""

    __test__ = False

    nodeid: str
    outcome: TestOutcome
    start_s: float
    """Seconds since the run began."""
    end_s: float
    duration_s: float
    """Seconds that pytest measured; for an unfinished test, those until its file ended."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """One test file in the time of its run."""

    path: str
    outcome: Outcome | None = None
    """None for a file without an outcome, in the record of a killed run."""
    reason: str = ""
    start_s: float | None = None
    """Seconds since the run began; None for a file that never started."""
    end_s: float = 0.0
    duration_s: float = 0.0
    """Seconds from the start of its process to the end of the process tree."""
    gpu_ids: tuple[str, ...] = ()
    directory: str = ""
    tests: tuple[TestSpan, ...] = ()
    need: Need = NO_NEED
    gpu_memory: GpuMemoryUse | None = None
    """Measured GPU memory; None where there is neither a figure nor a reason."""

    @property
    def is_failure(self) -> bool:
        """Whether its outcome makes a run fail."""
        return self.outcome is not None and self.outcome.is_failure


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU in quarantine."""

    gpu_id: str
    since_s: float
    path: str
    reason: str


@dataclass(slots=True)
class RunRecord:
    """A run as its record describes it."""

    run_id: str = ""
    directory: str = ""
    gpus: tuple[str, ...] = ()
    """GPUs of the run, one line each: index, model, memory, id."""
    left_out: tuple[str, ...] = ()
    containment: str = ""
    cpu_units: int = 0
    notes: tuple[str, ...] = ()
    isolation: tuple[IsolationNote, ...] = ()
    planned_makespan_s: float = 0.0
    files: dict[str, FileSpan] = field(default_factory=dict)
    """By path, in the order of the plan."""
    lost_gpus: list[LostGpu] = field(default_factory=list)
    exit_code: int | None = None
    """None for a run that was killed."""
    error: str = ""
    wall_s: float = 0.0
    sequential_s: float = 0.0
    utilisation: float = 0.0
    lower_bound_s: float = 0.0
    bounding_unit: str = ""
    num_unreadable: int = 0
    """Lines that are no event."""

    @property
    def first_start_s(self) -> float:
        """Seconds until the first file started; 0 if none did."""
        return min((each.start_s for each in self.files.values() if each.start_s is not None), default=0.0)

    @property
    def last_end_s(self) -> float:
        """Seconds until the last file ended; 0 if none started."""
        return max((each.end_s for each in self.files.values() if each.start_s is not None), default=0.0)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return self.last_end_s - self.first_start_s

    @property
    def num_tests(self) -> int:
        """Number of tests that began."""
        return sum(len(each.tests) for each in self.files.values())


def read_run_record(path: Path, *further: Event, max_bytes: int = MAX_BYTES) -> RunRecord:
    """Read the first `max_bytes` of the record of a run, and fold in the events of it that are not in the file yet.

    Raises OSError where the file is no regular file or cannot be read. A missing file is an empty record.
    """
    reading = _Reading()
    file = GrowingFile(path, max_bytes=max_bytes)
    try:
        lines = GrowingLines(file)
        while True:
            for line in lines.poll():
                reading.take(line)
            if not file.is_behind:
                break
    finally:
        file.close()
    for event in further:
        reading.take(to_json_line(event))
    return reading.finish()


@dataclass(slots=True)
class _Attempt:
    """What the events say about the tests of one file."""

    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[float, TestOutcome, float]] = field(default_factory=dict)


class _Reading:
    """The fold of a record's lines."""

    def __init__(self) -> None:
        self._record = RunRecord()
        self._attempts: dict[str, _Attempt] = {}
        self._cut_short: set[str] = set()
        """Units whose rest runs in another process."""
        self._before: dict[str, tuple[FileSpan, _Attempt]] = {}
        """The file and its tests as they were before its latest start, which a refused lease takes back."""
        self._t = 0.0

    def take(self, line: bytes | str) -> None:
        """Fold one line in; count it if it is no event."""
        try:
            event = json.loads(line)
            kind, t = event["event"], _seconds(event["t"])
            self._t = max(self._t, t)
            if fold := _FOLDS.get(kind):
                fold(self, event, t)
        except MALFORMED:
            self._record.num_unreadable += 1

    def finish(self) -> RunRecord:
        """The record, with the tests laid out in time. Files without an end have run until the last event."""
        files = self._record.files
        for path, span in files.items():
            if span.start_s is None:
                continue
            end_s = max(self._t if span.outcome is None else span.end_s, span.start_s)
            tests = _laid_out(span.start_s, end_s, self._attempts.get(path, _Attempt()))
            files[path] = replace(span, end_s=end_s, tests=tests)
        self._record.wall_s = self._record.wall_s or self._t
        return self._record

    def _run_started(self, event: dict[str, Any], t: float) -> None:
        record = self._record
        record.run_id, record.directory = _text(event["run_id"]), _text(event["directory"])
        record.gpus, record.left_out = _texts(event["gpus"]), _texts(event["left_out"])
        record.notes, record.containment = _texts(event["notes"]), _text(event["containment"])
        record.cpu_units = int(event["cpu_units"])

    def _collection_finished(self, event: dict[str, Any], t: float) -> None:
        for path in (_text(unit["path"]) for unit in event["units"]):
            self._record.files.setdefault(path, FileSpan(path))
        self._record.planned_makespan_s = _seconds(event["planned_makespan_s"])
        self._record.lower_bound_s = _seconds(event["lower_bound_s"])

    def _attempt_started(self, event: dict[str, Any], t: float) -> None:
        path = _text(event["path"])
        self._before[path] = (self._record.files.get(path, FileSpan(path)), self._attempts.get(path, _Attempt()))
        span = FileSpan(path, start_s=t, end_s=t, gpu_ids=_texts(event["gpu_ids"]), directory=_text(event["directory"]))
        if path in self._cut_short:  # it goes on with its rest
            earlier = self._record.files[path]
            self._record.files[path] = replace(span, start_s=earlier.start_s, directory=earlier.directory)
            return
        self._record.files[path] = span
        self._attempts[path] = _Attempt()

    def _lease_refused(self, event: dict[str, Any], t: float) -> None:
        path = _text(event["path"])
        self._record.files[path], self._attempts[path] = self._before.pop(path)

    def _attempt_failed(self, event: dict[str, Any], t: float) -> None:
        if event.get("is_rest") is True:
            self._cut_short.add(_text(event["path"]))

    def _test_started(self, event: dict[str, Any], t: float) -> None:
        self._attempts[_text(event["path"])].begun[_text(event["nodeid"])] = t

    def _test_finished(self, event: dict[str, Any], t: float) -> None:
        attempt, nodeid = self._attempts[_text(event["path"])], _text(event["nodeid"])
        attempt.begun.pop(nodeid, None)
        attempt.ended[nodeid] = (t, TestOutcome(event["outcome"]), _seconds(event["duration_s"]))

    def _gpu_quarantined(self, event: dict[str, Any], t: float) -> None:
        lost = LostGpu(_text(event["gpu_id"]), t, _text(event["path"]), _text(event["reason"]))
        self._record.lost_gpus.append(lost)

    def _gpu_readmitted(self, event: dict[str, Any], t: float) -> None:
        gpu_id = _text(event["gpu_id"])
        self._record.lost_gpus = [each for each in self._record.lost_gpus if each.gpu_id != gpu_id]
        self._record.notes += (f"{gpu_id} was leased again after {t:.1f} s: it was as it was before its quarantine",)

    def _unit_finished(self, event: dict[str, Any], t: float) -> None:
        result = event["result"]
        path = _text(result["unit"]["path"])
        self._record.files[path] = replace(
            self._record.files.get(path, FileSpan(path)),
            outcome=Outcome(result["outcome"]),
            reason=_text(result["reason"]),
            end_s=t,
            duration_s=_seconds(result["duration_s"]),
            need=Need.from_json(result["unit"]["need"]),
            gpu_memory=_memory(result.get("gpu_memory")),
        )

    def _run_finished(self, event: dict[str, Any], t: float) -> None:
        record = self._record
        record.exit_code, record.error = int(event["exit_code"]), _text(event["error"])
        record.wall_s, record.sequential_s = _seconds(event["wall_s"]), _seconds(event["sequential_s"])
        record.utilisation, record.lower_bound_s = _seconds(event["utilisation"]), _seconds(event["lower_bound_s"])
        record.bounding_unit = _text(event["bounding_unit"])
        record.notes += _texts(event["notes"])
        for failure in event.get("session_failures", ()):
            reason, log = (_text(failure[key]) for key in ("reason", "log"))
            record.notes += (f"pytest's session failed after its last test: {reason} (see {log})",)
        record.isolation = tuple(map(_isolation_note, event.get("isolation", ())))


_FOLDS: dict[str, Callable[[_Reading, dict[str, Any], float], None]] = {
    "run_started": _Reading._run_started,
    "collection_finished": _Reading._collection_finished,
    "attempt_started": _Reading._attempt_started,
    "lease_refused": _Reading._lease_refused,
    "attempt_failed": _Reading._attempt_failed,
    "test_started": _Reading._test_started,
    "test_finished": _Reading._test_finished,
    "gpu_quarantined": _Reading._gpu_quarantined,
    "gpu_readmitted": _Reading._gpu_readmitted,
    "unit_finished": _Reading._unit_finished,
    "run_finished": _Reading._run_finished,
}


def _laid_out(start_s: float, end_s: float, attempt: _Attempt) -> tuple[TestSpan, ...]:
    """The tests of a file one after another, none before its start or after its end.

    An event says when a report was read, which is up to a poll after the test had ended, and several tests then end at
    once. So they are laid out from the last to the first, each with the duration that pytest measured.
    """
    spans, limit_s = [], end_s
    for nodeid, t in reversed(attempt.begun.items()):
        began_s = min(max(t, start_s), limit_s)
        spans.append(TestSpan(nodeid, TestOutcome.UNFINISHED, began_s, limit_s, limit_s - began_s))
        limit_s = began_s
    for nodeid, (t, outcome, duration_s) in reversed(attempt.ended.items()):
        ended_s = max(start_s, min(t, limit_s))
        limit_s = max(start_s, ended_s - duration_s)
        spans.append(TestSpan(nodeid, outcome, limit_s, ended_s, duration_s))
    return tuple(reversed(spans))


def _isolation_note(value: dict[str, Any]) -> IsolationNote:
    return IsolationNote(
        IsolationCode(value["code"]),
        _text(value["path"]),
        None if value["reason"] is None else NotForked(value["reason"]),
        _text(value["detail"]),
        int(value["num_processes"]),
    )


def _memory(value: object) -> GpuMemoryUse | None:
    if not isinstance(value, dict):
        return None
    peak_bytes, tests = value["peak_bytes"], value["tests"]
    for amount in (peak_bytes, *tests.values()):
        _bytes(amount)
    if None in tests.values():
        raise ValueError("a test without an amount of memory")
    why = None if value["why"] is None else Unmeasured(value["why"])
    return GpuMemoryUse(peak_bytes, why, _text(value["test"]), tests)


def _bytes(value: object) -> int | None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PEAK_BYTES
    ):
        raise ValueError(f"not an amount of memory: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    if not 0 <= value <= MAX_S:
        raise ValueError(f"not a duration: {value!r}")
    return float(value)
