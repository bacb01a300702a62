"""Read a run of tests back: events.jsonl, which has its units and their outcomes, and the reports of its units."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bits.errors import ReportError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import MALFORMED, open_regular
from harness.runner.events import (
    CollectionFinished,
    Event,
    GpuQuarantined,
    GpuReadmitted,
    RunFinished,
    RunStarted,
    UnitFinished,
)
from harness.runner.report_file import TestOutcome, TestReport, read_report
from harness.runner.units import Outcome, Unit, UnitResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RECORD = "events.jsonl"
"""Name of the record in the directory of a run."""
PAGE = "run.html"
"""Name of the page in the directory of a run."""
MAX_RECORD_BYTES = 1 << 30
"""So large may a record be: over a million events."""
UNITS = "units"
KINDS: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "collection_finished": CollectionFinished,
    "gpu_quarantined": GpuQuarantined,
    "gpu_readmitted": GpuReadmitted,
    "unit_finished": UnitFinished,
    "run_finished": RunFinished,
}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run as its directory has it."""

    name: str
    """The path by which the user named it."""
    started: RunStarted
    collected: CollectionFinished | None
    """None if the record has no units."""
    results: dict[str, UnitResult]
    """Outcomes by the path of the unit, in the order in which they came."""
    quarantined: tuple[GpuQuarantined, ...]
    finished: RunFinished | None
    """None if the record has no end: the run was killed, or its disk was full."""
    num_unreadable: int = 0
    """Lines of the record that are no event."""
    num_from_reports: int = 0
    """Outcomes that the record lacks and the reports of the units have."""

    @property
    def is_incomplete(self) -> bool:
        """Whether events are missing in the record."""
        return self.finished is None or self.num_unreadable > 0


def read_recorded_run(path: Path) -> RecordedRun:
    """Return the run whose directory or record `path` is.

    The tests of the run can do anything to the record, and a full disk cuts it short: a line that is no event is passed
    over and counted, and an outcome that is missing comes from the report of the unit. The directories of its units are
    those beside the record where it has been moved with them. Raises UsageError for anything but the record of a run.
    """
    record = path / RECORD if path.is_dir() else path
    found: dict[type[Event], Any] = {}
    results: dict[str, UnitResult] = {}
    quarantined: list[GpuQuarantined] = []
    num_unreadable = 0
    for event in _events(record, path):
        match event:
            case None:
                num_unreadable += 1
            case RunFinished() if event.exit_code not in set(ExitCode):
                num_unreadable += 1
            case UnitFinished():
                results[event.result.unit.path] = event.result
            case GpuQuarantined():
                quarantined.append(event)
            case GpuReadmitted():
                quarantined = [each for each in quarantined if each.gpu_id != event.gpu_id]
            case _:
                found[type(event)] = event
    if RunStarted not in found:
        raise _refused(path, "it does not begin with the start of a run")
    started, collected, finished = found[RunStarted], found.get(CollectionFinished), found.get(RunFinished)
    results = {unit: _moved(result, Path(started.directory), record.parent) for unit, result in results.items()}
    num_in_record = len(results)
    if collected is not None and (finished is None or num_unreadable):
        for number, unit in enumerate(collected.units):
            if unit.path not in results and (result := _reported_result(unit, record.parent / UNITS, number)):
                results[unit.path] = result
    from_reports = len(results) - num_in_record
    return RecordedRun(
        str(path), started, collected, results, tuple(quarantined), finished, num_unreadable, from_reports
    )


def _reported_result(unit: Unit, units: Path, number: int) -> UnitResult | None:
    """Return the result of a unit as pytest reported it; None where the run may have had another one.

    That is so after several attempts, and unless pytest ended in order with every test it had collected.
    """
    attempts = [*units.glob(f"{number:04d}"), *units.glob(f"{number:04d}-*")]
    try:
        report = read_report(attempts[0] / "report.jsonl") if len(attempts) == 1 else TestReport()
    except (ReportError, OSError):
        return None
    is_whole = report.collected and report.ends.keys() >= set(report.nodeids) and not report.running
    is_odd = report.collect_errors or report.lost or report.interrupted is not None
    is_doubtful = report.unread or report.num_unreadable
    if report.finished_exit not in (0, 1, 5) or not is_whole or is_odd or is_doubtful:
        return None
    outcomes = {end.outcome for end in report.ends.values()}
    outcome = Outcome.PASSED if outcomes else Outcome.NO_TESTS
    if report.finished_exit == 1 or outcomes & {TestOutcome.FAILED, TestOutcome.ERROR}:
        outcome = Outcome.FAILED
    return UnitResult(
        unit,
        outcome,
        "as pytest reported; the record of events lacks this outcome",
        sum(end.duration_s for end in report.ends.values()),
        tests=report.counts(),
        skip_reasons=report.skip_reasons(),
        directory=str(attempts[0]),
        num_deselected=report.num_deselected,
    )


def _events(record: Path, named: Path) -> Iterator[Event | None]:
    """Yield the events of a record that are needed here; None for a line that is no event."""
    try:
        with open_regular(record, follows_links=True) as file:
            if (size_bytes := os.fstat(file.fileno()).st_size) > MAX_RECORD_BYTES:
                raise _refused(named, f"it has {size_bytes:,} bytes, more than {MAX_RECORD_BYTES:,}")
            for line in file:
                try:
                    values = json.loads(line)
                    if (name := values["event"]) in KINDS:
                        yield _adapter(name).validate_python(values)
                except MALFORMED:  # a ValidationError is a ValueError
                    yield None
    except OSError as error:
        raise _refused(named, error.strerror or str(error)) from None


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a recorded run: {why}",
        legal=f"a directory of a run, such as .rlharness/runs/latest, or its {RECORD}",
        remedy="name the directory that the line `output:` of the run shows, or the file of its --events",
    )


def _moved(result: UnitResult, recorded: Path, present: Path) -> UnitResult:
    """Return the result with its directory beside the record, where the units' directories are there too."""
    if not result.directory or not (present / UNITS).is_dir():
        return result
    attempts = tuple(replace(each, directory=_beside(each.directory, recorded, present)) for each in result.attempts)
    return replace(result, directory=_beside(result.directory, recorded, present), attempts=attempts)


def _beside(directory: str, recorded: Path, present: Path) -> str:
    if not directory or not Path(directory).is_relative_to(recorded):
        return directory
    return str(present / Path(directory).relative_to(recorded))


@cache
def _adapter(name: str) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # late: it takes 0.1 s, and a run reads no record

    return TypeAdapter(KINDS[name])
