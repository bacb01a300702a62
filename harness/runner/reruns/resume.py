"""`--resume RUN`: units that passed in an earlier run keep that outcome, and all others run.

    earlier run ──passed, file unchanged──▶ kept: their results are events of this run too, so it reports all units
                └─failed, interrupted, not run, without an outcome, changed──▶ run

A failed unit runs again, since its cause is often outside its file.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.bits.files import CHUNK_BYTES, open_regular
from harness.process.run_directory import HOME, RUNS
from harness.runner.collection.collect import Collected
from harness.runner.options import runs_parts_of_files
from harness.runner.records.recorded_run import RecordedRun, read_recorded_run
from harness.runner.units import Outcome, Unit, UnitResult

KEPT = frozenset((Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS))
"""Outcomes that a resumed run keeps."""


def find_run(root: Path, name: str) -> RecordedRun:
    """Return the run of a run id, of `latest`, or of a directory; UsageError for anything else."""
    below = root / HOME / RUNS / name
    path = below if "/" not in name and below.is_dir() else Path(name)
    return read_recorded_run(path.resolve())  # `latest` is a link, which will lead to the resumed run


def with_digests(collected: Collected, pytest_args: Sequence[str] = ()) -> Collected:
    """Return the collection with the digest of each unit: of its files, and of `pytest_args` if they select tests."""
    selecting = tuple(pytest_args) if runs_parts_of_files(pytest_args) else ()
    return replace(collected, units=tuple(_with_digest(unit, collected.rootdir, selecting) for unit in collected.units))


def keep_passed(collected: Collected, run: RecordedRun) -> Collected:
    """Return the collection without the files that passed in `run`, whose results are then in `kept`."""
    kept: dict[str, UnitResult] = {}
    units = []
    for unit in collected.units:
        earlier = _units_of(run, unit.file_path)
        results = [run.results.get(each.path) for each in earlier]
        if results and all(result is not None and _is_kept(unit, result) for result in results):
            run_id = run.started.run_id
            kept |= {r.unit.path: replace(r, resumed_from=r.resumed_from or run_id) for r in results if r is not None}
        else:
            units.append(unit)
    num_kept = len(collected.units) - len(units)
    note = f"--resume: {num_kept} of {len(collected.units)} units have passed in run {run.started.run_id} and are kept"
    return replace(collected, units=tuple(units), kept=kept, notes=(*collected.notes, note))


def with_kept(collected: Collected) -> Collected:
    """Return the collection with the kept units after those that run."""
    return replace(collected, units=(*collected.units, *(result.unit for result in collected.kept.values())))


def _units_of(run: RecordedRun, file: str) -> Iterable[Unit]:
    return [unit for unit in run.collected.units if unit.file_path == file] if run.collected is not None else []


def _is_kept(unit: Unit, result: UnitResult) -> bool:
    return result.outcome in KEPT and _content(result.unit) == _content(unit) and bool(unit.digest)


def _content(unit: Unit) -> tuple[object, ...]:
    """Everything of a unit that decides which tests it runs."""
    return unit.digest, unit.selection


def _with_digest(unit: Unit, rootdir: Path, selecting: Sequence[str]) -> Unit:
    digest = hashlib.sha256("\0".join(selecting).encode("utf-8", "surrogateescape"))
    try:
        with open_regular(rootdir / unit.file_path, follows_links=True) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:  # its attempt says so, and it is never kept
        return unit
    return replace(unit, digest=digest.hexdigest()[:32])
