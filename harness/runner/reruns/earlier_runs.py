"""What earlier runs decide: `--last-failed`, `--failed-first` and `--resume`.

What failed when it last ran, in the recorded runs: the files, and in each the tests that its report names.

A test failed if its outcome says so, or if it has none because the process ended before it. Where no report names a
test (a crash at import, a file that never started), the whole file counts.

`--resume RUN`: units that passed in an earlier run keep that outcome, and all others run.

    earlier run ──passed, file unchanged──▶ kept: their results are events of this run too, so it reports all units
                └─failed, interrupted, not run, without an outcome, changed──▶ run

A failed unit runs again, since its cause is often outside its file.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.errors import ReportError, UsageError
from harness.bits.files import CHUNK_BYTES, open_regular
from harness.bits.text import count
from harness.process.run_directory import HOME, RUNS
from harness.runner.collection.collect import Collected, is_part
from harness.runner.options import runs_parts_of_files
from harness.runner.records.recorded_run import RecordedRun, read_recorded_run
from harness.runner.reruns.retries import read_attempts, tests_to_repeat
from harness.runner.units import Outcome, Unit, UnitResult, files_of

MAX_SOURCE_BYTES = 1 << 24
_FUNCTION = re.compile(rb"^\s*(?:async\s+)?def\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LastFailed:
    """The files that failed or did not run when they last were to."""

    run_id: str
    """The latest run with one of them; if no file failed, the latest of all."""
    tests: Mapping[str, tuple[str, ...]]
    """Node ids of the tests to run again, by the path of their file; none for the whole file."""


def read_last_failed(root: Path) -> LastFailed | None:
    """Return what failed in the runs below `root` and has not run since; None without a run that has units."""
    failing, failed_in, run_id = dict[str, tuple[str, ...]](), dict[str, str](), ""
    for run in _oldest_first(root / HOME / RUNS):
        if run.collected is None or not run.collected.units:
            continue
        run_id = run.started.run_id
        for result in run.results.values():
            _settle(result, failing)
        for unit in run.collected.units:
            last = run.results.get(unit.path)
            if last is None or last.is_failure or last.outcome in (Outcome.INTERRUPTED, Outcome.NOT_RUN):
                before, again = failing.get(unit.file_path, (None,)), _again(last)
                is_whole = not again or not before  # a part of which no test is named counts as the whole file
                failing[unit.file_path] = () if is_whole else (*filter(None, before), *again)
                failed_in[unit.file_path] = run_id
    return LastFailed(max((failed_in[file] for file in failing), default=run_id), failing) if run_id else None


def _settle(result: UnitResult, failing: dict[str, tuple[str, ...]]) -> None:
    """Take out what has run: the file, or the tests of a file of which only some were selected."""
    file, ran = result.unit.file_path, set[str]()
    tests = failing.get(file, ())
    if not (result.unit.selection or result.num_deselected):
        failing.pop(file, None)
    elif tests and result.directory:
        with suppress(OSError, ReportError):
            ran.update(read_attempts(result).all_ids())
        if left := tuple(test for test in tests if test not in ran):
            failing[file] = left
        else:
            del failing[file]


def select_last_failed(collected: Collected, last: LastFailed | None) -> Collected:
    """Return the collection with what failed alone; all of it, and the reason, where none of that was collected."""
    if last is None or not last.tests:
        why = "no recorded run" if last is None else f"nothing failed in run {last.run_id}"
        return _noted(collected, f"--last-failed: {why}, so everything runs")
    units = tuple(unit for each in collected.units if (unit := _narrowed(each, last, collected.rootdir)) is not None)
    if not units:
        why = f"none of the files that failed in run {last.run_id} was collected ({len(last.tests)})"
        return _noted(collected, f"--last-failed: {why}, so everything runs")
    num_tests = sum(len(unit.selection) for unit in units)
    num_whole = sum(not unit.selection for unit in units)
    parts = [count(num_tests, "test")] * bool(num_tests) + [count(num_whole, "whole file")] * bool(num_whole)
    note = f"--last-failed: {' and '.join(parts)} of run {last.run_id}"
    paths = {unit.path for unit in units}
    not_found = {path: why for path, why in collected.not_found.items() if path in paths}
    return _noted(replace(collected, units=units, not_found=not_found), note)


def failed_first(collected: Collected, last: LastFailed | None) -> tuple[Collected, frozenset[int]]:
    """Return the collection with a note, and the numbers of the units that failed."""
    if last is None or not last.tests:
        why = "no recorded run" if last is None else f"nothing failed in run {last.run_id}"
        return _noted(collected, f"--failed-first: {why}"), frozenset()
    numbers = frozenset(number for number, unit in enumerate(collected.units) if unit.file_path in last.tests)
    return _noted(collected, f"--failed-first: {count(len(numbers), 'file')} of run {last.run_id} first"), numbers


def _noted(collected: Collected, note: str) -> Collected:
    return replace(collected, notes=(*collected.notes, note))


def _oldest_first(runs: Path) -> Iterator[RecordedRun]:
    """Yield the readable runs; their names sort by date."""
    try:
        names = sorted(entry.name for entry in runs.iterdir() if not entry.is_symlink())
    except OSError:
        return
    for name in names:
        with suppress(UsageError):  # a directory without a record, or with that of another version
            yield read_recorded_run(runs / name)


def _again(result: UnitResult | None) -> tuple[str, ...]:
    """Return the tests of a failed file to run again; none for the whole file."""
    if result is None or not result.directory:
        return () if result is None else result.unit.selection
    try:
        report = read_attempts(result)
    except (OSError, ReportError):
        return result.unit.selection
    return tests_to_repeat(report) or result.unit.selection


def _narrowed(unit: Unit, last: LastFailed, rootdir: Path) -> Unit | None:
    """Return the unit with the tests that failed of those asked for; None where none of these failed."""
    tests = last.tests.get(unit.path)
    if tests is None:
        return None
    if not tests or unit.together or not _are_defined(tests, rootdir / unit.path):
        return unit
    if unit.selection:
        tests = tuple(test for test in tests if any(is_part(test, asked) for asked in unit.selection))
    return replace(unit, selection=tests) if tests else None


def _are_defined(tests: tuple[str, ...], file: Path) -> bool:
    """Whether the file still defines functions of these names: pytest refuses a node id that names no test."""
    try:
        with open_regular(file, follows_links=True) as source:
            defined = {name.decode() for name in _FUNCTION.findall(source.read(MAX_SOURCE_BYTES))}
    except OSError:
        return False
    return all(test.partition("::")[2].partition("[")[0].rpartition("::")[2] in defined for test in tests)


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
    return unit.digest, unit.selection, unit.together


def _with_digest(unit: Unit, rootdir: Path, selecting: Sequence[str]) -> Unit:
    digest = hashlib.sha256("\0".join(selecting).encode("utf-8", "surrogateescape"))
    try:
        for path in files_of(unit):
            with open_regular(rootdir / path, follows_links=True) as file:
                of_file = hashlib.sha256()
                while chunk := file.read(CHUNK_BYTES):
                    of_file.update(chunk)
                digest.update(of_file.digest())
    except OSError:  # its attempt says so, and it is never kept
        return unit
    return replace(unit, digest=digest.hexdigest()[:32])
