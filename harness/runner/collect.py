"""Find the test files below the paths of a command line, and the need of each.

    paths ──▶ discovery child: pytest walks the suite, imports conftest files, reads needs from source (`discovery`)
                │  one conftest that hangs or ends the process: it starts again without it; its files failed
                ▼
              files ──▶ a pattern of the needs table? ──▶ its need
                        readable from source?         ──▶ that
                        neither                       ──▶ import child, one per file, some at a time
                a plan: a file of which node ids were asked for ──▶ a child that finds them, or says which it cannot

Every child is supervised like any attempt: it has a time limit, and rlharness kills its whole process tree. A file
that cannot be collected is a unit with the reason. rlharness removes every file that the children write.
"""

import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from harness.core.config import NeedRule, NeedsTable
from harness.core.errors import CollectionError, UsageError
from harness.core.fan_out import fan_out
from harness.core.need import Need
from harness.core.regular_file import open_regular, read_text
from harness.core.report_file import TestReport, read_report
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisor
from harness.runner.outcomes import signal_name
from harness.runner.selections import Selection, selected, split_selections
from harness.runner.units import NeedSource, Unit

NO_WORKERS = "-n0"
PLUGIN = "harness.runner.discovery"
CHILD = ("--collect-only", "-q", "-p", "harness.plugin", "-p", PLUGIN)
MAX_OUTPUT_BYTES = 1 << 16
USAGE = 4
CONTINUED = 1
"""Exit code of a collecting pytest under --continue-on-collection-errors; without it, with 2."""


class MakeSpec(Protocol):
    """Makes the attempt of one collection child: the interpreter before `pytest_args`, its environment, its marker."""

    def __call__(
        self,
        pytest_args: tuple[str, ...],
        directory: Path,
        timeout_s: float,
        session: Mapping[str, Any] | None,
        /,
    ) -> ProcessSpec:
        """`directory` exists and is the child's own; a TMPDIR in it goes with it.

        `session` tells a fork of the warm session the same as `pytest_args` tell an interpreter; None where only an
        interpreter will do.
        """


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Options that shape a collection, apart from the paths."""

    cwd: Path
    """The working directory of every child: paths are relative to it."""
    directory: Path
    """Made for the children, and removed with all that is in it."""
    timeout_s: float
    """Limit of each child."""
    limit: int
    """Number of import children at a time."""
    pytest_args: tuple[str, ...] = ()
    needs: tuple[NeedRule, ...] = ()
    distrusted: Callable[[Path], frozenset[str]] = lambda rootdir: frozenset()
    """Files, relative to the root directory, to import: their source once differed from the need of their tests."""
    preload: Callable[[Sequence[str]], Awaitable[None]] | None = None
    """Given the modules that several of the files import, before one is imported."""
    finds_node_ids: bool = False
    """Whether to find the tests that node ids name, which imports their files; a run learns of them from its units."""


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
    """Why the source of a file does not show its need, by path, for the imported files."""
    asks: Mapping[str, Mapping[str, Need]] = field(default_factory=dict)
    """Need of each test with markers, by the path of its unit and the name of the test in it."""
    not_found: Mapping[str, str] = field(default_factory=dict)
    """Pytest's message for node ids that name no test, by the path of their unit; empty if none was looked for."""
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
    collector = _Collector(options, supervisor, make_spec)
    try:
        collected = await collector.collect(paths, on_progress)
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)
    if options.directory.exists():
        return replace(collected, notes=(*collected.notes, f"{options.directory} could not be removed"))
    return collected


@dataclass(slots=True)
class _Collector:
    options: CollectOptions
    supervisor: Supervisor
    make_spec: MakeSpec
    num_children: int = 0

    async def collect(self, paths: Sequence[str], on_progress: Callable[[int, int], None]) -> Collected:
        selections = split_selections(paths, self.options.cwd)
        suite = await self._discover([each.path for each in selections])
        assert suite.found is not None
        rootdir = Path(suite.found["rootdir"])
        inifile = suite.found["inifile"]
        args = ("--rootdir", str(rootdir), *(("-c", inifile) if inifile else ()))
        if self.options.preload is not None:
            await self.options.preload([*suite.modules, *suite.found["imports"]])
        units, to_import = self._planned(suite, selections)
        asks = {path: _by_test(asked) for path, asked in suite.found["asks"].items()}
        num_done = 0

        async def imported(unit: Unit) -> Unit:
            nonlocal num_done
            known, asks[unit.path] = await self._imported(unit, rootdir, args)
            num_done += 1
            on_progress(num_done, len(to_import))
            return known

        for unit in await fan_out(imported, to_import, limit=self.options.limit):
            units[unit.path] = unit
        not_found = await self._unfound(units, rootdir, args) if self.options.finds_node_ids else {}
        files = [file for file in suite.found["files"] if file[0] in units]
        differs = "an earlier run found a need that differs from its source"
        why = {path: reason or differs for path, _, _, reason in files}
        return Collected(
            units=tuple(units.values()),
            rootdir=rootdir,
            pytest_args=(*args, NO_WORKERS) if suite.found["has_xdist"] else args,
            sizes_bytes={path: size_bytes for path, size_bytes, _, _ in files},
            why_imported={unit.path: why[unit.path] for unit in to_import},
            asks={path: asks[path] for path, unit in units.items() if path in asks and unit.source != NeedSource.TABLE},
            not_found=not_found,
            num_workers=suite.found["num_workers"],
            notes=tuple(suite.notes),
        )

    async def _child(self, args: tuple[str, ...], directory: Path, session: Mapping[str, Any] | None) -> ProcessEnd:
        return await self.supervisor.run(self.make_spec(args, directory, self.options.timeout_s, session))

    def _directory(self) -> Path:
        self.num_children += 1
        directory = self.options.directory / f"{self.num_children:04}"
        directory.mkdir()
        return directory

    async def _discover(self, paths: list[str]) -> _Suite:
        suite = _Suite()
        own_args = self.options.pytest_args
        while True:
            directory = self._directory()
            out = directory / "found.jsonl"
            marks = [f"--rlharness-broken={path}" for path in suite.broken]
            session = _session(paths, rlharness_discover=str(out), rlharness_broken=list(suite.broken))
            end = await self._child(
                (*own_args, *CHILD, f"--rlharness-discover={out}", *marks, *paths),
                directory,
                session if own_args == self.options.pytest_args else None,
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
        for line in _lines(out):
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
            how = f"{importing} was being imported when pytest {self._ending(end)}"
            suite.broken[importing] = _Broken(f"{how}\n{output_of(directory)}".rstrip(), end.reason == "timeout")

    def _ending(self, end: ProcessEnd) -> str:
        if end.reason == "timeout":
            return f"reached its limit of {self.options.timeout_s:g} s"
        if end.reason:
            return f"was ended: {end.reason}"
        return f"died of {signal_name(end.signal)}" if end.signal is not None else f"exited with {end.exit_code}"

    def _failure(self, end: ProcessEnd, directory: Path) -> CollectionError | UsageError:
        output = output_of(directory)
        if end.exit_code == USAGE and not end.reason:
            _, error, said = output.partition("ERROR: ")
            return UsageError(said.strip() if error else output, remedy="change the paths or the arguments after --")
        what = f"the test files cannot be listed: pytest {self._ending(end)}"
        remedy = "raise --collect-timeout, or name fewer paths" if end.reason == "timeout" else "correct pytest's error"
        return CollectionError(f"{what}\n{output}".rstrip(), remedy=remedy)

    def _planned(self, suite: _Suite, selections: list[Selection]) -> tuple[dict[str, Unit], list[Unit]]:
        """Every unit by its path, and those among them that have to be imported."""
        assert suite.found is not None
        rootdir = Path(suite.found["rootdir"])
        table = NeedsTable(self.options.needs)
        distrusted = self.options.distrusted(rootdir)
        units: dict[str, Unit] = {}
        to_import: list[Unit] = []
        for path, _, need, _ in suite.found["files"]:
            absolute = Path(os.path.abspath(rootdir / path))
            if any(Path(skipped) in absolute.parents for skipped in suite.skipped):
                continue
            unit = Unit(path, Need(), NeedSource.AST, table.timeout_s(path), selected(selections, absolute, path))
            broken = next((suite.broken[each] for each in suite.broken if Path(each).parent in absolute.parents), None)
            if broken is not None:
                unit = replace(unit, collect_error=broken.text, collect_timed_out=broken.timed_out)
            elif (given := table.need(path)) is not None:
                unit = replace(unit, need=given, source=NeedSource.TABLE)
            elif need is None or path in distrusted:
                unit = replace(unit, source=NeedSource.IMPORT)
                to_import.append(unit)
            else:
                unit = replace(unit, need=Need.from_json(need))
            units[path] = unit
        for nodeid, text in suite.errors:
            if not nodeid:
                raise CollectionError(f"the test files cannot be listed\n{text}", remedy="correct pytest's error")
            units[nodeid] = Unit(nodeid, Need(), NeedSource.AST, collect_error=text)
        for skipped, reason in suite.skipped.items():
            suite.notes.append(f"{os.path.relpath(skipped, rootdir)} skips itself: {reason}")
        # With selections, a pattern may match files that were not asked for.
        idle = table.idle_below(rootdir, list(units)) if selections else table.idle(list(units))
        suite.notes += [f"the pattern {glob!r} of the needs table matches no file" for glob in idle]
        return units, to_import

    async def _imported(self, unit: Unit, rootdir: Path, args: tuple[str, ...]) -> tuple[Unit, dict[str, Need]]:
        """The unit with the need that its file, imported, turns out to have, and that of each of its tests."""
        imported, report = await self._collected(unit, (os.path.abspath(rootdir / unit.path),), args)
        if imported.can_run and report.collected_need is not None:
            return replace(imported, need=report.collected_need), report.asks
        return imported, {}

    async def _unfound(self, units: dict[str, Unit], rootdir: Path, args: tuple[str, ...]) -> dict[str, str]:
        """What pytest says of node ids that name no test, by unit; one whose file cannot be imported says so itself."""

        async def found(unit: Unit) -> tuple[Unit, str]:
            file = os.path.abspath(rootdir / unit.path)
            nodeids = tuple(f"{file}{each.removeprefix(unit.path)}" for each in unit.selection)
            collected, report = await self._collected(unit, nodeids, args)
            return (unit, report.refused) if report.refused and not report.collect_errors else (collected, "")

        named = [unit for unit in units.values() if unit.selection and unit.can_run]
        asked = await fan_out(found, named, limit=self.options.limit)
        units.update((unit.path, unit) for unit, _ in asked)
        return {unit.path: refused for unit, refused in asked if refused}

    async def _collected(self, unit: Unit, paths: tuple[str, ...], args: tuple[str, ...]) -> tuple[Unit, TestReport]:
        """What a pytest that collects these says; and the unit, with the reason where its file cannot be imported."""
        directory = self._directory()
        report_args = ("--rlharness-report", str(directory / "report.jsonl"))
        session = _session(paths, rlharness_report=report_args[1])
        end = await self._child((*self.options.pytest_args, *args, *CHILD, *report_args, *paths), directory, session)
        try:
            report = read_report(directory / "report.jsonl")
            error = self._import_error(end, report, directory)
        except OSError as unreadable:  # the file, once imported, did something to it
            report, error = TestReport(), f"its report cannot be read: {unreadable.strerror}"
        return replace(unit, collect_error=error, collect_timed_out=bool(error) and end.reason == "timeout"), report

    def _import_error(self, end: ProcessEnd, report: TestReport, directory: Path) -> str:
        if report.collect_errors and end.exit_code != CONTINUED:
            return "\n\n".join(text for _, text in report.collect_errors)
        if report.collected:
            return ""
        return f"it was being imported when pytest {self._ending(end)}\n{output_of(directory)}".rstrip()


def _session(paths: Sequence[str], **options: object) -> dict[str, Any]:
    """What tells a fork of the warm session to collect `paths` as CHILD tells an interpreter."""
    return {"args": list(paths), "options": {"collectonly": True, **options}, "plugins": [PLUGIN]}


def _by_test(asked: Mapping[str, dict[str, Any]]) -> dict[str, Need]:
    return {test: Need.from_json(need) for test, need in asked.items()}


def output_of(directory: Path) -> str:
    """The end of what a child printed, and where its threads stood if its time ran out."""
    texts = []
    for name in ("output.log", "stacks.txt"):
        try:
            with open_regular(directory / name) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_OUTPUT_BYTES))
                texts.append(file.read(MAX_OUTPUT_BYTES).decode(errors="replace").strip())
        except FileNotFoundError:
            pass
        except OSError as error:
            texts.append(f"{name} cannot be read: {error.strerror}")
    return "\n".join(text for text in texts if text)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of what a discovery child wrote, which may have been killed at any byte."""
    try:
        text = read_text(path, errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CollectionError(
            f"the test files cannot be listed: {path.name} cannot be read: {error.strerror}",
            remedy="keep conftest files from changing the run's files",
        ) from None
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
