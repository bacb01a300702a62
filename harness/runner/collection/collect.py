"""Find the test files below the paths of a command line, and the need of each.

    paths ──▶ discovery child: pytest walks the suite, imports conftest files, scans the texts (`discovery`)
                │  one conftest that hangs or ends the process: it starts again without it; its files failed
                ▼
              files ──▶ a pattern of the needs table?    ──▶ its need
                        no text mentions `gpus`?         ──▶ none
                        collected earlier, and the same? ──▶ the need that it had
                        none of these                    ──▶ import child, one per file, some at a time
                node ids of a plan, or that a known file lacks ──▶ a child that finds them, or says which it cannot

A child is a fork of the warm session where there is one. Every child is supervised like any attempt: it has a time
limit, and rlharness kills its whole process tree. A file that cannot be collected is a unit with the reason. rlharness
removes every file that the children write.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import CollectionError, UsageError
from harness.machine.fan_out import fan_out
from harness.process.exhaustion import MAKE_ROOM, shortage_at
from harness.process.new_directory import make_new_directory
from harness.process.supervisor_client import ProcessEnd, Supervisor
from harness.runner.collection.child_files import UNWRITABLE, lines_of, output_of
from harness.runner.collection.collect_options import CollectOptions, MakeSpec
from harness.runner.need import Need, NeedsTable
from harness.runner.outcomes import signal_name
from harness.runner.records.collected_file import UNKNOWN, CollectedFile, collected_file
from harness.runner.report_file import TestReport, read_report
from harness.runner.schedule.splitting import Split
from harness.runner.selections import Selection, selected, split_selections
from harness.runner.sessions.combined_coverage import CoverageOptions, coverage_options
from harness.runner.sessions.part_file import PartTests
from harness.runner.sessions.plugin_names import XDIST, odd_name_plugins
from harness.runner.units import NeedSource, Unit, UnitResult

NO_WORKERS = "-n0"
PLUGIN = "harness.runner.collection.discovery"
CHILD = ("--collect-only", "-q", "-p", "harness.plugin")
USAGE = 4
CONTINUED = 1
"""Exit code of a collecting pytest under --continue-on-collection-errors; without it, with 2."""

ASK_DOCTOR = "let rlharness doctor check the disks and the limits of this machine"


@dataclass(frozen=True, slots=True)
class Collected:
    """The units of a run."""

    units: tuple[Unit, ...]
    rootdir: Path
    pytest_args: tuple[str, ...]
    """Arguments of every pytest process of this run before its file, so that it sees the suite as the discovery did:
    the same root directory and configuration file, and no distribution by xdist."""
    sizes_bytes: Mapping[str, int] = field(default_factory=dict)
    """Size of each file, by the path of its unit."""
    why_imported: Mapping[str, str] = field(default_factory=dict)
    """Why a file was imported, by path, for the imported files."""
    parts: Mapping[str, PartTests] = field(default_factory=dict)
    """Tests of each part of a file, by the path of its unit."""
    splits: tuple[Split, ...] = ()
    """Files that are split, and those that would be but for an obstacle."""
    asks: Mapping[str, Mapping[str, Need]] = field(default_factory=dict)
    """Need of each test of a file that may have markers, by the path of its unit and the name of the test in it."""
    files: Mapping[str, CollectedFile] = field(default_factory=dict)
    """What pytest collected from files, in this run or an earlier one, by path."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Digest of the inputs that decide the tests of a file, by path."""
    not_found: Mapping[str, str] = field(default_factory=dict)
    """Pytest's message for node ids that name no test, by the path of their unit; empty if none was looked for."""
    coverage: CoverageOptions | None = None
    """What pytest-cov measures; None where it measures nothing."""
    kept: Mapping[str, UnitResult] = field(default_factory=dict)
    """Results of units that do not run, by path: those that a resumed run keeps, and files without a selected test."""
    num_workers: int = 0
    """Number of xdist workers in pytest's arguments, which rlharness does not start."""
    notes: tuple[str, ...] = ()
    """Notes for the user, each shown once."""


@dataclass(frozen=True, slots=True)
class _Broken:
    text: str
    timed_out: bool = False


@dataclass(slots=True)
class _Suite:
    """What discovery children have found out so far."""

    found: dict[str, Any] | None = None
    broken: dict[str, _Broken] = field(default_factory=dict)
    """conftest files that cannot be imported, by their path."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Directories that skip themselves, with the reason."""
    errors: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    """Modules that a session without tests imports."""


async def collect(
    paths: Sequence[str],
    options: CollectOptions,
    supervisor: Supervisor,
    make_spec: MakeSpec,
    on_progress: Callable[[int, int], None] = lambda num_done, num_total: None,
) -> Collected:
    """The units below `paths` (files, directories, node ids; the suite's own `testpaths` for none).

    `on_progress` hears how many of the files that have to be imported are done. Raises UsageError where pytest refuses
    its arguments, CollectionError where no list of files came back.
    """
    options.directory.mkdir(parents=True, exist_ok=True)
    collector = Collector(options, supervisor, make_spec)
    try:
        collected = await collector.collect(paths, on_progress)
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)
    if options.directory.exists():
        return replace(collected, notes=(*collected.notes, f"{options.directory} could not be removed"))
    return collected


@dataclass(slots=True)
class Collector:
    """Starts the children of one collection."""

    options: CollectOptions
    supervisor: Supervisor
    make_spec: MakeSpec
    num_children: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    files: dict[str, CollectedFile] = field(default_factory=dict)
    """Files that are known from earlier runs, and those collected meanwhile."""
    notes: list[str] = field(default_factory=list)
    """On directories whose names files have taken while others were collected."""

    async def collect(self, paths: Sequence[str], on_progress: Callable[[int, int], None]) -> Collected:
        selections = split_selections(paths, self.options.cwd)
        suite = await self._discover([each.path for each in selections])
        assert suite.found is not None
        rootdir = Path(suite.found["rootdir"])
        inifile = suite.found["inifile"]
        args = ("--rootdir", str(rootdir), *(("-c", inifile) if inifile else ()))
        self._recall(suite.found["files"])
        units, to_import = self._planned(suite, selections)
        if self.options.preload is not None and (len(to_import) > 1 or not self.options.finds_node_ids):
            await self.options.preload([*suite.modules, *suite.found["imports"]])
        num_done = 0

        if to_import:
            on_progress(0, len(to_import))

        async def imported(unit: Unit) -> Unit:
            nonlocal num_done
            file = os.path.abspath(rootdir / unit.path)
            unit, _ = await self.collected(unit, (file,), args)
            num_done += 1
            on_progress(num_done, len(to_import))
            is_asked = unit.path in self.files and unit.source is NeedSource.IMPORT
            return replace(unit, need=self.files[unit.path].need_of(unit.selection)) if is_asked else unit

        for unit in await fan_out(imported, to_import, limit=self.options.limit):
            units[unit.path] = unit
        self.keep([unit.path for unit in to_import])
        not_found = await self._unfound(units, rootdir, args)
        files = [file for file in suite.found["files"] if file[0] in units]
        differs = "an earlier run found another need than its plan had"
        differs = "-k, -m or --deselect may leave none of its tests" if self.options.imports_all else differs
        why = {path: reason or differs for path, _, reason, _ in files}
        return Collected(
            units=tuple(units.values()),
            rootdir=rootdir,
            pytest_args=(*args, NO_WORKERS) if suite.found["has_xdist"] else args,
            sizes_bytes={path: size_bytes for path, size_bytes, _, _ in files},
            why_imported={unit.path: why[unit.path] for unit in to_import},
            asks={
                path: self.files[path].asks
                for path, unit in units.items()
                if unit.source is NeedSource.IMPORT and path in self.files
            },
            files=dict(self.files),
            keys=dict(self.keys),
            not_found=not_found,
            coverage=coverage_options(*suite.found["coverage"]),
            num_workers=suite.found["num_workers"],
            notes=(*suite.notes, *self.notes),
        )

    def _recall(self, files: Sequence[Sequence[str]]) -> None:
        """Learn what earlier runs collected from the same files."""
        context = self.options.context.encode()
        self.keys = {
            path: hashlib.blake2b(f"{digest}\0".encode() + context, digest_size=16).hexdigest()
            for path, _, _, digest in files
        }
        if self.options.memory is not None:
            self.files = self.options.memory.collected_files(self.keys)

    def keep(self, paths: Sequence[str]) -> None:
        """Keep for later runs what was collected from these files."""
        if self.options.memory is not None:
            known = [path for path in paths if path in self.files]
            found = [path for path in known if self.files[path].asks or self.files[path].is_deselected]  # others skip
            self.options.memory.keep_collected({path: (self.keys[path], self.files[path]) for path in found})

    async def _child(
        self, args: tuple[str, ...], directory: Path, session: Mapping[str, Any] | None, limit_s: float
    ) -> ProcessEnd:
        return await self.supervisor.run(self.make_spec(args, directory, limit_s, session))

    def _session(self, paths: Sequence[str], **options: object) -> dict[str, Any]:
        """What tells a fork of the warm session to collect `paths`."""
        plugins = [XDIST, PLUGIN, *odd_name_plugins(paths, self.options.cwd)]
        return {"args": list(paths), "options": {"collectonly": True, **options}, "plugins": plugins}

    def _directory(self) -> Path:
        self.num_children += 1
        directory = self.options.directory / f"{self.num_children:04}"
        self.notes += make_new_directory(directory)
        return directory

    async def _discover(self, paths: list[str]) -> _Suite:
        suite = _Suite()
        own_args = self.options.pytest_args
        while True:
            directory = self._directory()
            out = directory / "found.jsonl"
            marks = [f"--rlharness-broken={path}" for path in suite.broken]
            session = self._session(paths, rlharness_discover=str(out), rlharness_broken=list(suite.broken))
            end = await self._child(
                (*own_args, *_loaded(session), f"--rlharness-discover={out}", *marks, *paths),
                directory,
                session if own_args == self.options.pytest_args else None,
                self.options.timeout_s,
            )
            num_broken = len(suite.broken)
            self._take_over(suite, out, end, directory)
            if suite.found is not None:
                return suite
            if len(suite.broken) > num_broken:
                continue
            if end.exit_code == USAGE and suite.broken and own_args != ("-o", "addopts="):
                # Options that a broken conftest would have defined are unknown now; its files fail in any case.
                suite.notes.append("a conftest failed: the files were found without pytest's arguments and addopts")
                own_args = ("-o", "addopts=")
                continue
            raise self._failure(end, directory)

    def _take_over(self, suite: _Suite, out: Path, end: ProcessEnd, directory: Path) -> None:
        """Learn what a discovery child has written, and the conftest in which it hung or died."""
        suite.errors.clear()
        importing = ""
        for line in lines_of(out):
            match line:
                case {"k": "conftest", "path": path}:
                    importing = path
                case {"k": "imported"}:
                    importing = ""
                case {"k": "broken", "path": path, "text": text}:
                    suite.broken[path] = _Broken(text)
                    importing = ""
                case {"k": "skipped", "path": path, "reason": reason}:
                    suite.skipped[path] = reason
                    importing = ""
                case {"k": "error", "id": nodeid, "text": text}:
                    suite.errors.append((nodeid, text))
                case {"k": "found"}:
                    suite.found = line
                case {"k": "modules", "modules": modules}:
                    suite.modules = modules
        if importing and suite.found is None and end.reason in ("", "timeout"):
            how = f"{importing} was being imported when pytest {self._ending(end, self.options.timeout_s)}"
            suite.broken[importing] = _Broken(f"{how}\n{output_of(directory)}".rstrip(), end.reason == "timeout")

    def _ending(self, end: ProcessEnd, limit_s: float) -> str:
        if end.reason == "timeout":
            return f"reached its limit of {limit_s:g} s"
        if end.reason:
            return f"was ended: {end.reason}"
        return f"died of {signal_name(end.signal)}" if end.signal is not None else f"exited with {end.exit_code}"

    def _failure(self, end: ProcessEnd, directory: Path) -> CollectionError | UsageError:
        output = output_of(directory)
        if end.exit_code == USAGE and not end.reason:
            _, error, said = output.partition("ERROR: ")
            if said.startswith(UNWRITABLE):
                return CollectionError(said.strip(), remedy=f"make room or permission for {directory}")
            return UsageError(
                said.strip() if error else output, remedy="change the paths, -k and -m, or the arguments after --"
            )
        what = f"the test files cannot be listed: pytest {self._ending(end, self.options.timeout_s)}"
        if lack := shortage_at(directory):
            last = output.splitlines()[-1:]  # it ends in the error of the call that found no room
            return CollectionError("\n".join([f"{what}; {lack}", *last]), remedy=MAKE_ROOM)
        if not output and end.reason != "timeout":
            return CollectionError(f"{what}, and printed nothing", remedy=ASK_DOCTOR)
        remedy = {"timeout": "raise --collect-timeout, or name fewer paths", "": "correct pytest's error"}
        return CollectionError(f"{what}\n{output}".rstrip(), remedy=remedy.get(end.reason, ASK_DOCTOR))

    def _planned(self, suite: _Suite, selections: list[Selection]) -> tuple[dict[str, Unit], list[Unit]]:
        """Every unit by its path, and those among them that have to be imported."""
        assert suite.found is not None
        rootdir = Path(suite.found["rootdir"])
        table = NeedsTable(self.options.needs)
        distrusted, imports_all = self.options.distrusted(rootdir), self.options.imports_all
        units: dict[str, Unit] = {}
        to_import: list[Unit] = []
        for path, _, why_import, _ in suite.found["files"]:
            absolute = Path(os.path.abspath(rootdir / path))
            if any(Path(skipped) in absolute.parents for skipped in suite.skipped):
                continue
            unit = Unit(path, Need(), NeedSource.AST, table.timeout_s(path), selected(selections, absolute, path))
            broken = next((suite.broken[each] for each in suite.broken if Path(each).parent in absolute.parents), None)
            if broken is not None:
                unit = replace(unit, collect_error=broken.text, collect_timed_out=broken.timed_out)
            elif (given := table.need(path)) is not None:
                unit = replace(unit, need=given, source=NeedSource.TABLE)
                to_import += [unit] * (imports_all and path not in self.files)
            elif path in distrusted or ((why_import or imports_all) and path not in self.files):
                self.files.pop(path, None)
                unit = replace(unit, source=NeedSource.IMPORT)
                to_import.append(unit)
            elif why_import or imports_all:
                unit = replace(unit, need=self.files[path].need_of(unit.selection), source=NeedSource.IMPORT)
            units[path] = unit
        for nodeid, text in suite.errors:
            if not nodeid:
                raise CollectionError(f"the test files cannot be listed\n{text}", remedy="correct pytest's error")
            units[nodeid] = Unit(nodeid, Need(), NeedSource.AST, collect_error=text)
        for skipped, reason in suite.skipped.items():
            suite.notes.append(f"{os.path.relpath(skipped, rootdir)} skips itself: {reason}")
        return units, to_import

    async def _unfound(self, units: dict[str, Unit], rootdir: Path, args: tuple[str, ...]) -> dict[str, str]:
        """What pytest says of node ids that name no test, by unit; one whose file cannot be imported says so itself."""

        async def found(unit: Unit) -> tuple[Unit, str]:
            file = os.path.abspath(rootdir / unit.path)
            nodeids = tuple(f"{file}{each.removeprefix(unit.path)}" for each in unit.selection)
            collected, report = await self.collected(unit, nodeids, args)
            return (unit, report.refused) if report.refused and not report.collect_errors else (collected, "")

        asks_all, known = self.options.finds_node_ids, self.files
        named = [unit for unit in units.values() if unit.selection and unit.can_run]
        named = [unit for unit in named if asks_all or known.get(unit.path, UNKNOWN).lacks_any(unit.selection)]
        asked = await fan_out(found, named, limit=self.options.limit)
        units.update((unit.path, unit) for unit, _ in asked)
        return {unit.path: refused for unit, refused in asked if refused}

    async def collected(self, unit: Unit, paths: tuple[str, ...], args: tuple[str, ...]) -> tuple[Unit, TestReport]:
        """What a pytest that collects these says; and the unit, with the reason where its file cannot be imported.

        Of a whole file, the tests are in `files` then.
        """
        directory = self._directory()
        report_args = ("--rlharness-report", str(directory / "report.jsonl"))
        session = self._session(paths, rlharness_report=report_args[1])
        own_args = (*self.options.pytest_args, *args, *_loaded(session))
        end = await self._child((*own_args, *report_args, *paths), directory, session, self.options.import_limit_s)
        try:
            report = read_report(directory / "report.jsonl")
            error = self._import_error(end, report, directory)
        except OSError as unreadable:  # the file, once imported, did something to it
            report, error = TestReport(), f"its report cannot be read: {unreadable.strerror}"
        if not error and all(map(os.path.isfile, paths)) and (file := collected_file(report)) is not None:
            self.files[unit.path] = file
        return replace(unit, collect_error=error, collect_timed_out=bool(error) and end.reason == "timeout"), report

    def _import_error(self, end: ProcessEnd, report: TestReport, directory: Path) -> str:
        if report.collect_errors and end.exit_code != CONTINUED:
            return "\n\n".join(text for _, text in report.collect_errors)
        if report.collected:
            return ""
        ending = self._ending(end, self.options.import_limit_s)
        return f"it was being imported when pytest {ending}\n{output_of(directory)}".rstrip()


def _loaded(session: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells an interpreter the same as a session."""
    return (*CHILD, *(arg for name in session["plugins"] for arg in ("-p", name)))
