"""Read the record of a run back: the events that say which units it had, how each ended, and how the run did.

A run that was killed leaves a record without its end. Lines that are not whole are not read.
"""

import json
import os
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from harness.bits.errors import UsageError
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
from harness.runner.need import Need
from harness.runner.units import UnitResult

RECORD = "events.jsonl"
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
    """One run as its record has it."""

    name: str
    """The path by which the user named it."""
    started: RunStarted
    collected: CollectionFinished | None
    """None if the run ended before its units were known."""
    results: dict[str, UnitResult]
    """Outcomes by the path of the unit, in the order in which they came."""
    quarantined: tuple[GpuQuarantined, ...]
    finished: RunFinished | None
    """None if the run was killed before its end."""


def read_recorded_run(path: Path) -> RecordedRun:
    """Return the run whose directory or record `path` is.

    The directories of its units are those beside the record where it has been moved with them. Raises UsageError for
    anything but the record of a run.
    """
    record = path / RECORD if path.is_dir() else path
    found: dict[type[Event], Any] = {}
    results: dict[str, UnitResult] = {}
    quarantined = []
    for event in _events(record, path):
        match event:
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
    started = found[RunStarted]
    results = {unit: _moved(result, Path(started.directory), record.parent) for unit, result in results.items()}
    collected, finished = found.get(CollectionFinished), found.get(RunFinished)
    return RecordedRun(str(path), started, collected, results, tuple(quarantined), finished)


def _events(record: Path, named: Path) -> list[Event]:
    events = []
    try:
        with open_regular(record, follows_links=True) as file:
            if (size_bytes := os.fstat(file.fileno()).st_size) > MAX_RECORD_BYTES:
                raise _refused(named, f"it has {size_bytes:,} bytes, more than {MAX_RECORD_BYTES:,}")
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n") and (event := _event(line, number, named)) is not None:
                    events.append(event)
    except OSError as error:
        raise _refused(named, error.strerror or str(error)) from None
    return events


def _event(line: bytes, number: int, named: Path) -> Event | None:
    """Return the event of one line; None for one of another kind."""
    try:
        values = json.loads(line)
        kind = KINDS.get(values["event"])
        return None if kind is None else _rebuilt(kind, values)
    except MALFORMED as error:
        raise _refused(named, f"line {number} is not an event: {type(error).__name__}: {error}") from None


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
def _types_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _rebuilt(kind: Any, value: Any) -> Any:
    """Return the value that `events.plain` has written, as an object of its type; TypeError, ValueError for others."""
    if kind is Need:
        return Need.from_json(value)
    if is_dataclass(kind):
        types = _types_of(kind)  # type: ignore[arg-type]
        known = [each.name for each in fields(kind) if each.name in value]
        return kind(**{name: _rebuilt(types[name], value[name]) for name in known})  # type: ignore[operator]
    arguments = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else _rebuilt(arguments[0], value)
    if get_origin(kind) is tuple:
        return tuple(_rebuilt(arguments[0], each) for each in value)
    if get_origin(kind) is dict:
        return {_rebuilt(arguments[0], key): _rebuilt(arguments[1], each) for key, each in value.items()}
    if issubclass(kind, Enum):
        return kind(value)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
