"""Files and tests of a run in the time of the run, and the GPU or CPU slot on which each ran."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from harness.runner.events import (
    AttemptFailed,
    AttemptStarted,
    Event,
    GpuReadmitted,
    LeaseRefused,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestOutcome
from harness.runner.units import Outcome


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


@dataclass
class FileSpan:
    """One test file, or a part of one, in the time of its run."""

    path: str
    gpu_ids: tuple[str, ...]
    directory: str
    start_s: float
    """Seconds since the run began."""
    end_s: float = 0.0
    """Seconds since the run began; those of the latest event for a file without an outcome."""
    outcome: Outcome | None = None
    """None for a file without an outcome, in a run that did not end."""
    duration_s: float = 0.0
    """Seconds from the start of its process to the end of the process tree."""
    begun: dict[str, float] = field(default_factory=dict)
    """Starts of the tests that have not ended, by node id."""
    ended: dict[str, tuple[float, TestOutcome, float]] = field(default_factory=dict)
    """Time, outcome and duration of the tests that have ended, by node id."""

    @cached_property
    def tests(self) -> tuple[TestSpan, ...]:
        """The tests one after another, none before the start of the file or after its end; read it after the run.

        An event says when a report was read, which is up to a poll after the test had ended, and several tests then
        end at once. So they are laid out from the last to the first, each with the duration that pytest measured.
        """
        spans, limit_s = [], max(self.end_s, self.start_s)
        for nodeid, t in reversed(self.begun.items()):
            began_s = min(max(t, self.start_s), limit_s)
            spans.append(TestSpan(nodeid, TestOutcome.UNFINISHED, began_s, limit_s, limit_s - began_s))
            limit_s = began_s
        for nodeid, (t, outcome, duration_s) in reversed(self.ended.items()):
            ended_s = max(self.start_s, min(t, limit_s))
            limit_s = max(self.start_s, ended_s - duration_s)
            spans.append(TestSpan(nodeid, outcome, limit_s, ended_s, duration_s))
        return tuple(reversed(spans))


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU or CPU slot, and the files that ran there."""

    name: str
    """Name of the row, such as "GPU 0" or "CPU slot 1"."""
    title: str
    """The GPU's line ("0 NVIDIA H200 143 GB GPU-aaaa"); the name for a CPU slot."""
    files: tuple[FileSpan, ...]
    """Files, in the order of their starts."""
    lost_s: float | None = None
    """Seconds from which on the GPU was in quarantine."""

    @property
    def busy_s(self) -> float:
        """Seconds in which a file ran here."""
        return sum(each.end_s - each.start_s for each in self.files)


class Timeline:
    """The consumer of a run's events that keeps when each file and test ran."""

    def __init__(self) -> None:
        self.files: dict[str, FileSpan] = {}
        """The files that have started, by path."""
        self.readmitted: list[GpuReadmitted] = []
        self._before: dict[str, FileSpan | None] = {}
        """Each file as it was before its latest start, which a refused lease takes back."""
        self._cut_short: set[str] = set()
        """Units whose rest runs in another process."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Fold one event in."""
        match event:
            case AttemptStarted(path=path):
                before = self._before[path] = self.files.get(path)
                span = FileSpan(path, event.gpu_ids, event.directory, event.t)
                if path in self._cut_short and before:  # it goes on with its rest
                    span.start_s, span.directory = before.start_s, before.directory
                    span.begun, span.ended = dict(before.begun), dict(before.ended)
                self.files[path] = span
            case LeaseRefused(path=path):
                if before := self._before.pop(path):
                    self.files[path] = before
                else:
                    del self.files[path]
            case AttemptFailed(is_rest=True):
                self._cut_short.add(event.path)
            case TestStarted():
                self.files[event.path].begun[event.nodeid] = event.t
            case TestFinished():
                span = self.files[event.path]
                span.begun.pop(event.nodeid, None)
                span.ended[event.nodeid] = (event.t, TestOutcome(event.outcome), event.duration_s)
            case UnitFinished(result=result):
                if found := self.files.get(result.unit.path):
                    found.outcome, found.end_s, found.duration_s = result.outcome, event.t, result.duration_s
            case GpuReadmitted():
                self.readmitted.append(event)
        for path in state.running:
            self.files[path].end_s = event.t

    def close(self) -> None:
        """Nothing is open."""

    def rows(self, state: RunState) -> tuple[Row, ...]:
        """Return the rows: all GPUs in the order of the run, then the CPU slots used at once.

        A file that leased several GPUs is on the row of each. A GPU that files share has as many rows as it had at
        once. Events do not number CPU slots: a file is put on the first that is free when it starts.
        """
        started = sorted(self.files.values(), key=lambda each: (each.start_s, each.path))
        slots = _packed(each for each in started if not each.gpu_ids)
        return (
            *_gpu_rows(state, started),
            *(Row(f"CPU slot {number}", f"CPU slot {number}", files) for number, files in enumerate(slots)),
        )


def _gpu_rows(state: RunState, started: list[FileSpan]) -> Iterator[Row]:
    for line in state.gpus:
        number, gpu_id = line.split()[0], line.split()[-1]
        lost = state.quarantined.get(gpu_id)
        for place, files in enumerate(_packed(each for each in started if gpu_id in each.gpu_ids) or [()], start=1):
            name = f"GPU {number}" + (f" ({place})" if place > 1 else "")
            yield Row(name, line, files, lost.t if lost else None)


def _packed(files: Iterable[FileSpan]) -> list[tuple[FileSpan, ...]]:
    """Files, in the order of their starts, on as few rows as hold no two at once."""
    rows: list[list[FileSpan]] = []
    for each in files:
        row = next((row for row in rows if row[-1].end_s <= each.start_s), None)
        if row is None:
            rows.append(row := [])
        row.append(each)
    return [tuple(row) for row in rows]
