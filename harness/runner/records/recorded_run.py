"""Read a run of tests back from events.jsonl; merge several, such as shards."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bits.errors import UsageError
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
from harness.runner.records.stats import RunState, exit_code
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

    @property
    def is_incomplete(self) -> bool:
        """Whether events are missing in the record."""
        return self.finished is None or self.num_unreadable > 0


def read_recorded_run(path: Path) -> RecordedRun:
    """Return the run whose directory or record `path` is.

    The tests of the run can do anything to the record, and a full disk cuts it short: a line that is no event is passed
    over and counted. The directories of its units are those beside the record where it has been moved with them. Raises
    UsageError for anything but the record of a run.
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
    return RecordedRun(str(path), started, collected, results, tuple(quarantined), finished, num_unreadable)


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


RANKING = (
    ExitCode.INTERNAL_ERROR,
    ExitCode.TESTS_FAILED,
    ExitCode.USAGE_ERROR,
    ExitCode.INTERRUPTED,
    ExitCode.NOTHING_COLLECTED,
    ExitCode.UNITS_NOT_RUN,
    ExitCode.GPU_QUARANTINED,
)
"""Exit codes; each wins over those after it."""
MAX_NAMED = 3
"""Units without an outcome which are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class MergedRun:
    """Several recorded runs as one."""

    runs: tuple[RecordedRun, ...]
    state: RunState
    """Its units without a result have no recorded outcome."""
    finished: RunFinished
    num_shards: int
    """Number of shards of the suite; 0 where no run was a shard."""
    missing_shards: tuple[int, ...]
    errors: tuple[str, ...]
    """Reasons why the merged run is not complete, or ended early."""

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode(self.finished.exit_code)


def merge_runs(runs: Sequence[RecordedRun]) -> MergedRun:
    """Return `runs` as one run.

    A unit of two runs has the outcome of the one in which it was run. Raises UsageError for a unit that was run twice,
    and for shards that were cut differently.
    """
    num_shards, missing = _missing_shards(runs)
    units: dict[str, Unit] = {}
    results: dict[str, tuple[RecordedRun, UnitResult]] = {}
    for run in runs:
        for unit in run.collected.units if run.collected is not None else ():
            units.setdefault(unit.path, unit)
            if result := run.results.get(unit.path):
                results[unit.path] = _one_of(results.get(unit.path), (run, result))
    state = RunState()
    gpus = dict.fromkeys(gpu for run in runs for gpu in run.started.gpus)
    left_out = dict.fromkeys(gpu for run in runs for gpu in run.started.left_out)
    state.apply(RunStarted(0.0, "", "", tuple(gpus), tuple(left_out), (), "", 0))
    state.apply(CollectionFinished(0.0, tuple(units.values()), (0.0,) * len(units), 0.0, 0.0, 0.0))
    for _, result in results.values():
        state.apply(UnitFinished(0.0, result))
    for run in runs:
        state.quarantined.update((event.gpu_id, event) for event in run.quarantined)
    errors = [f"shard {number}/{num_shards} is missing" for number in missing]
    errors += [f"{run.name}: {run.finished.error}" for run in runs if run.finished is not None and run.finished.error]
    errors += [error for run in runs for error in _losses(run)]
    finished = _finished(runs, state, missing, errors)
    return MergedRun(tuple(runs), state, finished, num_shards, missing, tuple(errors))


def _missing_shards(runs: Sequence[RecordedRun]) -> tuple[int, tuple[int, ...]]:
    """Return the number of shards, and the numbers of those that no run was."""
    shards = [(run.name, run.collected.shard) for run in runs if run.collected is not None and run.collected.shard]
    if not shards:
        return 0, ()
    first_name, first = shards[0]
    for name, shard in shards:
        if (shard.count, shard.partition) != (first.count, first.partition):
            raise UsageError(
                f"{name} has shard {shard.number}/{shard.count} of partition {shard.partition}, "
                f"but {first_name} has shard {first.number}/{first.count} of partition {first.partition}",
                legal="shards of one partition",
                remedy="run all shards with the same N, the same files and the same history of durations, or none",
            )
    present = {shard.number for _, shard in shards}
    return first.count, tuple(number for number in range(1, first.count + 1) if number not in present)


def _one_of(
    earlier: tuple[RecordedRun, UnitResult] | None, later: tuple[RecordedRun, UnitResult]
) -> tuple[RecordedRun, UnitResult]:
    """Return the result of the run that ran the unit; UsageError where both did."""
    if earlier is None or earlier[1].outcome is Outcome.NOT_RUN:
        return later
    if later[1].outcome is Outcome.NOT_RUN:
        return earlier
    (first, one), (second, other) = earlier, later
    raise UsageError(
        f"{one.unit.path} is {one.outcome.value} in {first.name} and {other.outcome.value} in {second.name}",
        legal="runs of different files; a file that was not_run in one run may be in another",
        remedy=f"leave out {first.name} or {second.name}",
    )


def _losses(run: RecordedRun) -> Iterator[str]:
    """Say what the record of a run lacks."""
    if not run.is_incomplete:
        return
    units = run.collected.units if run.collected is not None else ()
    unknown = [unit.path for unit in units if unit.path not in run.results]
    losses = [f"{run.name}: its record of events is incomplete"]
    if run.collected is None:
        losses.append("it has no units")
    if unknown:
        more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
        losses.append(f"no outcome of {', '.join(unknown[:MAX_NAMED])}{more}")
    yield "; ".join(losses)


def _finished(
    runs: Sequence[RecordedRun], state: RunState, missing: tuple[int, ...], errors: Sequence[str]
) -> RunFinished:
    """Return the last event: the longest wall time of the runs, and their sequential times together."""
    ends = [(run, run.finished) for run in runs if run.finished is not None]
    gpu_s = [(len(run.started.gpus) * end.makespan_s, end.utilisation) for run, end in ends]
    offered_s = sum(seconds for seconds, _ in gpu_s)
    notes = [f"{run.name}: {note}" for run, end in ends for note in end.notes]
    reports = [Path(each.directory, "report.jsonl") for each in state.results.values() if each.directory]
    if num_unread := sum(not report.is_file() for report in reports):
        notes.append(
            f"{num_unread} test reports are missing: only the records were given, without the units beside them"
        )
    return RunFinished(
        t=0.0,
        exit_code=int(_exit_code(runs, state, missing)),
        wall_s=max((end.wall_s for _, end in ends), default=0.0),
        sequential_s=state.sequential_s,
        utilisation=sum(seconds * share for seconds, share in gpu_s) / offered_s if offered_s > 0 else 0.0,
        lower_bound_s=0.0,
        makespan_s=max((end.makespan_s for _, end in ends), default=0.0),
        error="; ".join(errors),
        notes=tuple(notes),
        session_failures=tuple(each for _, end in ends for each in end.session_failures),
        isolation=tuple(note for _, end in ends for note in end.isolation),
    )


def _exit_code(runs: Sequence[RecordedRun], state: RunState, missing: tuple[int, ...]) -> ExitCode:
    """Return the code that ranks first of that of all units and those that no unit explains."""
    given = [ExitCode(run.finished.exit_code) if run.finished is not None else ExitCode.OK for run in runs]
    codes = {
        exit_code(
            state,
            allow_missing_gpus=ExitCode.UNITS_NOT_RUN not in given,
            internal_error=ExitCode.INTERNAL_ERROR in given,
            session_failed=any(run.finished is not None and run.finished.session_failures for run in runs),
        )
    }
    for run, code in zip(runs, given, strict=True):
        if run.collected is None:
            codes.add(code or ExitCode.INTERRUPTED)
        elif code is ExitCode.USAGE_ERROR:  # a report that could not be written
            codes.add(code)
    if missing or any(run.is_incomplete for run in runs):
        codes.add(ExitCode.INTERRUPTED)
    return next((code for code in RANKING if code in codes), ExitCode.OK)
