"""Find the tests that a file leans on: those after which it passes, while it fails in a process of its own.

    FILE alone ─▶ all files before it, then FILE ─▶ fewer and fewer of these files ─▶ fewer and fewer of their tests

Each probe is one supervised attempt with an interpreter of its own, on one lease: what pytest itself would do with the
same arguments. The files stay in pytest's order. Nothing is recorded: a probe is no run of the suite.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from harness.core.errors import HarnessError, ReportError, UsageError
from harness.core.exit_codes import ExitCode
from harness.core.report_file import TestReport, read_report
from harness.core.shrink import ddmin
from harness.runner import events
from harness.runner.attempts.leaning_check import failing_tests, files_before, passes_in
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.collection.collect import Collected
from harness.runner.network_pins import network_pins
from harness.runner.options import RunOptions
from harness.runner.planning import collect_and_plan
from harness.runner.probing import search_with_probes
from harness.runner.run_context import RunContext
from harness.runner.schedule.leases import Lease
from harness.runner.units import Unit, UnitResult

T = TypeVar("T")
MAX_FILES = 20_000
"""In a directory with more files, new ones are not looked for."""


class LeaningKind(StrEnum):
    """Answer to the question what a file leans on."""

    PASSES_ALONE = "passes_alone"
    FAILS_ANYWAY = "fails_anyway"  # in pytest's own order too
    LEANS = "leans"
    LEFT_BEHIND = "left_behind"  # it passes alone once the others have run: something outlives their process
    UNSTABLE = "unstable"  # equal probes gave different answers


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt to have the file pass."""

    paths: tuple[str, ...]
    """Files and node ids that ran before the file, relative to the root directory."""
    deselected: tuple[str, ...]
    """Those of them that were only imported."""
    passed: bool
    """Whether every test of the file passed."""
    reason: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Leaning:
    """What a file leans on, and how to see that with pytest alone."""

    kind: LeaningKind
    file: str
    """Path of the file, relative to the root directory."""
    failing: tuple[str, ...] = ()
    """Its tests that do not pass in a process of its own; empty where it cannot be imported."""
    leans_on: tuple[str, ...] = ()
    """Tests after which it passes, none of which can be left out; files where their import is enough."""
    is_import: bool = False
    """Whether the import of these files is enough."""
    new_files: tuple[str, ...] = ()
    """Files in the working directory that the first probe of all files has made, where the file passes alone since."""
    passes: tuple[str, ...] = ()
    """Arguments with which pytest passes."""
    fails: tuple[str, ...] = ()
    """Arguments with which pytest fails."""
    left_out: tuple[str, ...] = ()
    """Files before it that need more than its GPUs, and were not tried."""
    probes: tuple[Probe, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """0 where the file passes in a process of its own."""
        return ExitCode.OK if self.kind is LeaningKind.PASSES_ALONE else ExitCode.TESTS_FAILED


async def find_leaning(options: RunOptions, file: str, on_probe: Callable[[Probe], None]) -> Leaning | str:
    """Find what `file` (a path as on the command line) leans on, among the files of the suite before it.

    Returns the name of the signal where one came first. Raises HarnessError for a mistake of the user.
    """
    return await search_with_probes(options, lambda context: _find(context, file, on_probe))


async def _find(context: RunContext, file: str, on_probe: Callable[[Probe], None]) -> Leaning:
    options, invocation = context.options, context.options.invocation
    planned = await collect_and_plan(context, lambda num_done, num_total: None)
    collected = planned.collected
    unit = _unit_of(collected, file, invocation.cwd)
    lease = planned.table.lease(unit.need)
    if lease is None:
        raise UsageError(
            f"--leaning {file}: {planned.table.why_never(unit.need)}",
            legal="a file whose need this machine can meet",
            remedy="run it on a machine with such GPUs",
        )
    network = await network_pins([unit], collected.rootdir, invocation, context.clock)
    runner = UnitRunner(
        options=options,
        collected=collected,
        attempts=context.supervisors,
        watch=context.gpus.watch(context.clock),
        ports=context.ports,
        run_id=context.run_id,
        run_directory=context.scratch / "leaning",
        scratch=context.scratch,
        t=context.clock.monotonic_s,
        pins=network.pins if network else None,
    )
    preceding, left_out = files_before(collected.units, unit)
    return await Search(Prober(runner, unit, lease, on_probe), preceding, left_out).carry_out()


def _unit_of(collected: Collected, file: str, cwd: Path) -> Unit:
    wanted = os.path.abspath(cwd / file)
    for unit in collected.units:
        if os.path.abspath(collected.rootdir / unit.file_path) == wanted:
            return unit
    raise UsageError(
        f"--leaning {file} names none of the {len(collected.units)} test files of this suite",
        legal="a test file among the paths of this command; without paths, among all of the suite",
        remedy="name one that rlharness plan lists",
    )


@dataclass(slots=True)
class Prober:
    """Runs the file after others, one attempt at a time."""

    runner: UnitRunner
    unit: Unit
    lease: Lease
    on_probe: Callable[[Probe], None]
    probes: list[Probe] = field(default_factory=list)
    result: UnitResult | None = None
    report: TestReport = field(default_factory=TestReport)
    """Result and report of the last attempt."""
    wanted: tuple[str, ...] = ()
    """Tests that have to pass, beside whatever else the file holds."""

    async def passes_after(self, paths: Sequence[str], deselected: Sequence[str] = ()) -> bool:
        """Whether the file passes after `paths` (files and node ids); of `deselected` no test runs."""
        runner, unit, options = self.runner, self.unit, self.runner.options
        num_files = 1 + len({path.partition("::")[0] for path in paths})
        invocation = options.invocation
        trailing = (*invocation.trailing, *(f"--deselect={path}" for path in deselected))
        runner.post = self._take
        runner.options = replace(
            options,
            invocation=replace(invocation, trailing=trailing),
            collect_timeout_s=options.collect_timeout_s * num_files,
        )
        limit_s = (unit.timeout_s or options.timeout_s) * num_files
        asked = replace(unit, selection=(*paths, unit.file_path), timeout_s=limit_s)
        try:
            await runner.run(len(self.probes), asked, self.lease)
        finally:
            runner.options = options
        assert self.result is not None
        self.report = TestReport()
        with suppress(OSError, ReportError):  # a test did something to it: then none is known to have passed
            self.report = read_report(Path(self.result.directory, "report.jsonl"))
        passed = passes_in(self.report, unit.file_path, self.wanted)
        probe = Probe(tuple(paths), tuple(deselected), passed, self.result.reason, self.result.duration_s)
        self.probes.append(probe)
        self.on_probe(probe)
        return passed

    def files(self) -> frozenset[str]:
        """The files below the working directory, hidden ones and caches apart; none of a very large tree."""
        cwd = self.runner.options.invocation.cwd
        found: set[str] = set()
        for directory, names, files in os.walk(cwd):
            names[:] = [name for name in names if not name.startswith((".", "__"))]
            found.update(os.path.relpath(os.path.join(directory, name), cwd) for name in files)
            if len(found) > MAX_FILES:
                return frozenset()
        return frozenset(found)

    def from_cwd(self, path: str) -> str:
        """A path or node id as it is typed in the working directory."""
        return self.runner.from_cwd(path)

    @property
    def command(self) -> tuple[str, ...]:
        """How pytest is started without rlharness."""
        return ("python", "-m", "pytest", *self.runner.options.invocation.trailing)

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.UnitFinished):
            self.result = event.result
        elif isinstance(event, events.GpuQuarantined):
            raise HarnessError(
                f"{event.gpu_id} was not free again after {event.path}: {event.reason}",
                remedy="end what holds the GPU, and run this command again",
            )


class Search:
    """The search for one file."""

    def __init__(self, prober: Prober, preceding: tuple[str, ...], left_out: tuple[str, ...]) -> None:
        self._prober = prober
        self._file = prober.unit.file_path
        self._preceding = preceding
        self._left_out = left_out

    async def carry_out(self) -> Leaning:
        prober = self._prober
        if await prober.passes_after(()) and prober.result is not None and not prober.result.outcome.is_failure:
            return self._answer(LeaningKind.PASSES_ALONE)
        prober.wanted = failing_tests(prober.report, self._file)
        known = prober.files()
        if not self._preceding or not await prober.passes_after(self._preceding):
            return self._answer(LeaningKind.FAILS_ANYWAY)
        new_files = tuple(sorted(prober.files() - known))
        if await prober.passes_after(()):
            return replace(self._answer(LeaningKind.LEFT_BEHIND), new_files=new_files)
        files = await _smallest(self._preceding, prober.passes_after)
        is_import = await prober.passes_after(files, deselected=files)
        leans_on = files
        if not is_import:
            if not await prober.passes_after(files):
                return self._answer(LeaningKind.UNSTABLE)
            tests = [test for test in prober.report.all_ids() if test.partition("::")[0] in files]
            leans_on = await _smallest(tests, prober.passes_after)
        if not await prober.passes_after(leans_on, deselected=files if is_import else ()):
            return self._answer(LeaningKind.UNSTABLE)
        return self._answer(LeaningKind.LEANS, leans_on, is_import=is_import)

    def _answer(self, kind: LeaningKind, leans_on: Sequence[str] = (), *, is_import: bool = False) -> Leaning:
        prober = self._prober
        of_file = prober.from_cwd(self._file)
        before = [prober.from_cwd(path) for path in leans_on]
        skipping = [f"--deselect={path}" for path in leans_on] if is_import else []
        leans = kind is LeaningKind.LEANS
        return Leaning(
            kind=kind,
            file=self._file,
            failing=prober.wanted,
            leans_on=tuple(leans_on),
            is_import=is_import,
            passes=(*prober.command, *skipping, *before, of_file) if leans else (),
            fails=(*prober.command, of_file) if leans else (),
            left_out=self._left_out,
            probes=tuple(prober.probes),
        )


async def _smallest(items: Sequence[T], is_enough: Callable[[tuple[T, ...]], Awaitable[bool]]) -> tuple[T, ...]:
    """Return items that are enough together, none of which can be left out; all of `items` are known to be."""
    search = ddmin(items)
    try:
        candidate = next(search)
        while True:
            candidate = search.send(await is_enough(candidate))
    except StopIteration as end:
        smallest: tuple[T, ...] = end.value
        return smallest
