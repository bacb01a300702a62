"""Merge recorded runs, such as the shards of a suite, into one state with one exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.runner.events import CollectionFinished, RunFinished, RunStarted, UnitFinished
from harness.runner.records.recorded_run import RecordedRun
from harness.runner.records.stats import RunState, exit_code
from harness.runner.units import Outcome, Unit, UnitResult

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
NEVER_ENDED = "the runner stopped before this unit had an outcome"


@dataclass(frozen=True, slots=True)
class MergedRun:
    """Several recorded runs as one."""

    runs: tuple[RecordedRun, ...]
    state: RunState
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
    results: dict[str, tuple[RecordedRun, UnitResult]] = {}
    for run in runs:
        for unit in run.collected.units if run.collected is not None else ():
            result = run.results.get(unit.path, UnitResult(unit, Outcome.INTERRUPTED, NEVER_ENDED))
            results[unit.path] = _one_of(results.get(unit.path), (run, result))
    state = _state(runs, [result for _, result in results.values()])
    errors = [f"shard {number}/{num_shards} is missing" for number in missing]
    errors += [f"{run.name}: {run.finished.error}" for run in runs if run.finished is not None and run.finished.error]
    errors += [f"{run.name} ended before its tests were known" for run in runs if _is_void(run)]
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


def _state(runs: Sequence[RecordedRun], results: Sequence[UnitResult]) -> RunState:
    state = RunState()
    gpus = dict.fromkeys(gpu for run in runs for gpu in run.started.gpus)
    left_out = dict.fromkeys(gpu for run in runs for gpu in run.started.left_out)
    units: tuple[Unit, ...] = tuple(result.unit for result in results)
    state.apply(RunStarted(0.0, "", "", tuple(gpus), tuple(left_out), (), "", 0))
    state.apply(CollectionFinished(0.0, units, (0.0,) * len(units), 0.0, 0.0, 0.0))
    for result in results:
        state.apply(UnitFinished(0.0, result))
    for run in runs:
        state.quarantined.update((event.gpu_id, event) for event in run.quarantined)
    state.check_sum()
    return state


def _finished(
    runs: Sequence[RecordedRun], state: RunState, missing: tuple[int, ...], errors: Sequence[str]
) -> RunFinished:
    """Return the last event: the longest wall time of the runs, and their sequential times together."""
    ends = [(run, run.finished) for run in runs if run.finished is not None]
    gpu_s = [(len(run.started.gpus) * end.makespan_s, end.utilisation) for run, end in ends]
    offered_s = sum(seconds for seconds, _ in gpu_s)
    notes = [f"{run.name}: {note}" for run, end in ends for note in end.notes]
    if num_unread := sum(bool(each.directory) and not _has_report(each) for each in state.results.values()):
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
        bounding_unit="",
        error="; ".join(errors),
        notes=tuple(notes),
        session_failures=tuple(each for _, end in ends for each in end.session_failures),
        isolation=tuple(note for _, end in ends for note in end.isolation),
    )


def _is_void(run: RecordedRun) -> bool:
    """Whether a run ended without a word before its units were known."""
    return run.collected is None and (run.finished is None or not run.finished.error)


def _has_report(result: UnitResult) -> bool:
    return Path(result.directory, "report.jsonl").is_file()


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
    if missing:
        codes.add(ExitCode.INTERRUPTED)
    return next((code for code in RANKING if code in codes), ExitCode.OK)
