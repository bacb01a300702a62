"""A run of a test suite from options to its last event: the order of the steps, and who owns what.

    read the GPUs ─▶ context ─▶ RunStarted ─▶ collect, pack, network ─▶ CollectionFinished ─▶ dispatch ─▶ RunFinished

Signals are heard from the first step on: before anything is dispatched they end what is awaited, afterwards they are
the dispatcher's. Once there is a RunStarted there is a RunFinished, whatever ends the run.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bits.errors import BusyGpusError, HarnessError, InventoryError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import read_regular
from harness.machine.gpu_health import Meter
from harness.machine.gpu_watch import GpuWatch
from harness.machine.gpus import read_with_meter
from harness.machine.inventory import Inventory
from harness.process.child_env import PREFLIGHT
from harness.process.claims import Claims
from harness.process.clock import Clock, SystemClock
from harness.process.daemon_thread import in_daemon_thread
from harness.process.exhaustion import LoopErrors, exhaustion_of
from harness.process.interruption import Interruption
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.process.run_directory import make_run_directory, new_run_id
from harness.process.scratch import let_go, make_scratch_root, remove_abandoned, remove_tree
from harness.process.supervisor_client import ContainmentBackends, Supervisors, find_py_spy, probe_backends
from harness.runner import events
from harness.runner.attempts.leaning_check import LeaningCheck
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.collection.collect import Collected, collect
from harness.runner.collection.units import (
    expect_selected,
    give_needs,
    note_idle,
    set_aside_deselected,
    split_files,
)
from harness.runner.dispatcher import Dispatcher, Recorder
from harness.runner.options import RunOptions, runs_parts_of_files, selects_by_outcome, selects_tests, stops_early
from harness.runner.records.history import Expectation, History, HistoryKeeper
from harness.runner.records.stats import RunState, closing_figures, exit_code
from harness.runner.reporter import Guarded
from harness.runner.reruns.resume import keep_passed, with_digests, with_kept
from harness.runner.reruns.retries import NAMED, Retries
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, Queue, Shard, ShardPlan, lower_bound, plan, plan_shard
from harness.runner.sessions.combined_coverage import combine_coverage
from harness.runner.sessions.suite import Suite
from harness.runner.units import IsolationNote, SessionFailure, Unit, merge_notes

if TYPE_CHECKING:
    from harness.machine.network.preflight import Preflight
    from harness.runner.ray.cluster import RayCluster

SCRATCH_S = 30.0
"""For making a directory, and removing what killed runs have left beside it."""
WAIT_EVERY_S = 2.0
"""Between two looks at GPUs that are waited for."""
INVENTORY_S = 60.0
"""Eight GPUs without persistence mode take up to half of that to wake."""
SESSION_END_S = 120.0
"""For the end of pytest's session, in which it may write reports."""
IMPORTS_RAY = re.compile(rb"^\s*(import|from)\s+ray\b", re.MULTILINE)
MakeReporters = Callable[[Path, Clock], list[Guarded]]
"""Makes the reporters of a run, given its directory: in the order in which each is given every event."""


@dataclass(frozen=True, slots=True)
class RunGpus:
    """The GPUs of a run, and what reads them."""

    inventory: Inventory
    meter: Meter
    """Never closed: a driver that hangs would hang in that too."""
    cluster: "RayCluster | None" = None
    """Cluster whose GPUs they are; None for this machine."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Everything a run or plan needs of this machine."""

    options: RunOptions
    clock: Clock
    run_id: str
    scratch: Path
    """Short and local; for TMPDIRs and what need not be kept."""
    backends: ContainmentBackends
    gpus: RunGpus
    supervisors: "Supervisors | RayCluster"
    ports: PortBlocks
    history: History
    suite: Suite
    """The session that collects the suite, started and not yet waited for."""
    notes: tuple[str, ...]
    """Notes for the user on how the machine was read."""


async def read_run_gpus(options: RunOptions, claims: Claims) -> RunGpus:
    """The GPUs that `options` ask for, each claimed; InventoryError where they cannot be had or read.

    Waits for busy ones as long as `options` allow: for all that are counted or named, and for one with auto.
    """
    if options.ray is not None:
        from harness.runner.ray.cluster import join

        inventory, cluster = await join(options.ray, options.containment, options.gpus)
        return RunGpus(inventory, cluster, cluster)
    clock, shown = SystemClock(), ""
    deadline_s = clock.monotonic_s() + options.wait_s
    while True:
        left_s = deadline_s - clock.monotonic_s()
        try:
            found = await _read_run_gpus(options, claims)
            left_out = found.inventory.left_out
            if left_s <= 0 or found.inventory.gpus or not any(gpu.is_busy for gpu in left_out):
                return found
            reason = "; ".join(f"GPU {gpu.index} ({gpu.model}): {gpu.reason}" for gpu in left_out)
        except BusyGpusError as error:
            if left_s <= 0:
                raise
            reason = error.what
        if (without_sizes := re.sub(r"[\d.]+ GB", "", reason)) != shown:  # a program's memory changes all the time
            options.invocation.note(f"waiting for GPUs, {left_s:.0f} s at most: {reason}")
            shown = without_sizes
        await asyncio.sleep(min(WAIT_EVERY_S, left_s))


async def _read_run_gpus(options: RunOptions, claims: Claims) -> RunGpus:
    def read() -> RunGpus:
        return RunGpus(*read_with_meter(options.gpus, options.invocation.environ, claims))

    try:
        return await in_daemon_thread(read, limit_s=INVENTORY_S)
    except TimeoutError:
        raise InventoryError(
            f"--gpus {options.gpus}: the GPU driver did not answer within {INVENTORY_S:g} s",
            legal="GPUs with a driver that answers",
            remedy="check the messages of the driver in dmesg, or run the files that need no GPU with --gpus none",
        ) from None


@asynccontextmanager
async def _opened(options: RunOptions, interruption: Interruption, *, is_run: bool) -> AsyncIterator[RunContext | None]:
    """Find the GPUs, and make the directories; return and remove all of them in the end. A plan keeps no file.

    None where a signal came before.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        claims = stack.enter_context(Claims())
        gpus = await interruption.unless_interrupted(read_run_gpus(options, claims))
        if gpus is None:
            yield None
            return
        environ = options.invocation.environ
        scratch, held, scratch_notes = await _make_scratch(environ)
        stack.callback(os.close, held)
        stack.callback(_clear_scratch, Path(scratch), options.invocation.note, keep_tmp=options.keep_tmp)
        run_id = new_run_id(clock.wall())
        ports = PortBlocks(claims, read_ephemeral_range())
        has_gpus = bool(gpus.inventory.gpus)
        # First of all, since it takes longest; what follows happens meanwhile.
        suite = Suite(options, run_id, Path(scratch), master_port=ports.master_port(0), has_gpus=has_gpus)
        stack.enter_context(closing(suite))
        backends = probe_backends(options.containment)
        history = History() if options.history_free else History.of_root(options.root, environ, is_run=is_run)
        stack.enter_context(history)
        supervisors = stack.enter_context(closing(gpus.cluster or Supervisors(backends.chosen, run_id, find_py_spy())))
        if isinstance(supervisors, Supervisors):
            supervisors.parent = suite
        notes = tuple(note for note in (gpus.inventory.note, *scratch_notes, *history.notes) if note)
        directory = Path(scratch)
        yield RunContext(options, clock, run_id, directory, backends, gpus, supervisors, ports, history, suite, notes)


async def _make_scratch(environ: Mapping[str, str]) -> tuple[str, int, tuple[str, ...]]:
    """The scratch root, what holds it, and notes; UsageError where its file system does not answer."""

    def make() -> tuple[str, int, tuple[str, ...]]:
        scratch, held, note = make_scratch_root(environ)
        return scratch, held, (note, *remove_abandoned(os.path.dirname(scratch)))

    try:
        return await in_daemon_thread(make, limit_s=SCRATCH_S)
    except TimeoutError:
        raise UsageError(
            f"cannot create a directory in TMPDIR or /tmp within {SCRATCH_S:g} s",
            legal="a TMPDIR on a local file system that answers",
            remedy="find the file system that does not answer with rlharness doctor, and set TMPDIR to another one",
        ) from None


def _clear_scratch(scratch: Path, note: Callable[[str], None], *, keep_tmp: bool) -> None:
    """Remove the scratch root; with `keep_tmp` only what no failed unit left in it."""
    entries = list(scratch.iterdir()) if keep_tmp and scratch.is_dir() else []
    kept = [path for path in entries if path.name.replace("-", "").isdigit()]
    if not kept:
        if complaint := remove_tree(str(scratch)):
            note(complaint)
        return
    let_go(str(scratch))
    for path in set(entries) - set(kept):
        remove_tree(str(path))


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of collection and packing."""

    collected: Collected
    table: LeaseTable
    plan: Plan
    shard: ShardPlan | None = None
    """What the units are a part of; None for a whole suite."""
    estimated: frozenset[int] = frozenset()
    """Numbers of the planned units without a known duration."""


async def collect_and_plan(context: RunContext) -> Planned:
    """Find the units, expect their durations, pack them. Raises CollectionError, UsageError."""
    options = context.options
    collected = await collect(options, context.suite)
    collected = with_digests(note_idle(collected, options), options.invocation.trailing)
    collected = give_needs(collected, options, context.gpus.inventory)
    sizes = {unit.path: collected.sizes_bytes.get(unit.path, 0) for unit in collected.units}
    expected: Mapping[str, Expectation] = context.history.expectations(sizes)
    collected, shard = _cut(collected, {path: each.seconds for path, each in expected.items()}, options.shard)
    if options.resume:
        collected = keep_passed(collected, options.resume)
    collected = set_aside_deselected(collected)
    if selects_tests(options.invocation.trailing):
        expected = expect_selected(expected, collected, context.history.test_durations_s(collected.files))
    table = new_table(context)
    if options.split and not selects_by_outcome(options.invocation.trailing):
        collected, expected = split_files(collected, expected, table, context.history)
    collected = with_kept(collected)
    failed_first = context.suite.failed_first
    first = frozenset(number for number, unit in enumerate(collected.units) if unit.file_path in failed_first)
    jobs = [
        Job(number, unit.need, expected[unit.path].seconds)
        for number, unit in enumerate(collected.units)
        if unit.can_run and unit.path not in collected.not_found and unit.path not in collected.kept
    ]
    estimated = frozenset(job.index for job in jobs if expected[collected.units[job.index].path].is_estimate)
    return Planned(collected, table, plan(jobs, table, first), shard, estimated)


def _cut(
    collected: Collected, expected_s: Mapping[str, float], shard: Shard | None
) -> tuple[Collected, ShardPlan | None]:
    """Return the part of the collection that belongs to `shard`; all of it for None."""
    if shard is None:
        return collected, None
    paths, shard_plan = plan_shard(expected_s, shard)
    units = tuple(unit for unit in collected.units if unit.path in paths)
    not_found = {path: why for path, why in collected.not_found.items() if path in paths}
    return replace(collected, units=units, not_found=not_found), shard_plan


def new_table(context: RunContext) -> LeaseTable:
    """Return a table of this run's GPUs and CPU slots, all of them free."""
    return LeaseTable(context.gpus.inventory, context.options.cpu_units, context.options.mix_models)


def needs_network(unit: Unit, rootdir: Path) -> bool:
    """Return whether the processes of `unit` probably communicate through sockets."""
    if not unit.can_run:
        return False
    if unit.need.gpus >= 2:
        return True
    try:
        return IMPORTS_RAY.search(read_regular(rootdir / unit.file_path, follows_links=True)) is not None
    except OSError:  # it went since it was collected: its attempt says so
        return False


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has had its last event."""

    state: RunState
    finished: events.RunFinished
    failure: Exception | None = None
    """Exception that ended the run; None where nothing did."""


async def run_tests(options: RunOptions, make_reporters: MakeReporters) -> EndedRun | str:
    """Run the tests that `options` name; the name of the signal where one came before anything was run.

    Raises HarnessError for a mistake of the user that shows before the run has begun.
    """
    with Interruption() as interruption:
        async with _opened(options, interruption, is_run=True) as context:
            if context is None:
                return interruption.by
            directory = make_run_directory(options.results_root, context.run_id)
            return await _Run(context, directory, interruption, make_reporters(directory, context.clock)).carry_out()


async def plan_tests(options: RunOptions) -> tuple[Planned, tuple[str, ...]] | str:
    """Collect and pack what `options` name: the plan and notes on it, or the name of the signal that ended it."""
    with Interruption() as interruption:
        async with _opened(options, interruption, is_run=False) as context:
            if context is None:
                return interruption.by
            planned = await interruption.unless_interrupted(collect_and_plan(context))
            if planned is None:
                return interruption.by
            return planned, tuple(dict.fromkeys((*context.notes, *planned.collected.notes, *context.history.notes)))


class _Run:
    """One run on its context."""

    def __init__(
        self, context: RunContext, directory: Path, interruption: Interruption, reporters: list[Guarded]
    ) -> None:
        self.context = context
        self.options = context.options
        self.directory = directory
        self.interruption = interruption
        self.state = RunState()
        self.notes: tuple[str, ...] = ()
        self.isolation: tuple[IsolationNote, ...] = ()
        self.session_failures: tuple[SessionFailure, ...] = ()
        self.reporters = reporters
        self.recorder = Recorder(self.state, reporters, context.clock)

    async def carry_out(self) -> EndedRun:
        recorder, failure = self.recorder, None
        asyncio.get_running_loop().set_exception_handler(LoopErrors(self.options.invocation.note))
        self.interruption.on_dump = lambda: recorder.take(events.DumpRequested(recorder.t()))
        try:
            recorder.take(self._started())
            await self._collect_and_dispatch()
        except Exception as error:  # whatever it is: the record gets its end first
            failure = exhaustion_of(error) or error
        try:
            finished = self._finished(failure)
            for reporter in self.reporters:
                if reporter.is_late:  # whether its file is there is a part of how the run has ended
                    reporter.on_event(finished, self.state)
            recorder.take(self._with_losses(finished))
            finished = self._with_losses(finished)
        finally:
            recorder.close()
        return EndedRun(self.state, finished, failure)

    async def _collect_and_dispatch(self) -> None:
        """Everything between RunStarted and RunFinished; an interrupted collection dispatches nothing."""
        context, recorder, interruption = self.context, self.recorder, self.interruption
        prepared = await interruption.unless_interrupted(self._prepare())
        if prepared is None:
            reason = f"{interruption.by} during collection"
            recorder.take(events.CancelRequested(recorder.t(), reason, kill=False))
            return
        planned, network = prepared
        units = planned.collected.units
        if self.options.shard is None and not runs_parts_of_files(self.options.invocation.trailing):
            recorder.add(
                Guarded(
                    HistoryKeeper(context.history, context.run_id),
                    "the history of durations",
                    self.options.invocation.note,
                )
            )
        recorder.take(self._collected(planned, network.notes if network else ()))
        runner = self._unit_runner(planned.collected, network.pins if network else None)
        queue, cluster = Queue(planned.plan.order), context.gpus.cluster
        dispatcher = Dispatcher(units, queue, planned.table, runner, recorder)
        if cluster and context.gpus.inventory.gpus:
            dispatcher.new_gpus, cluster.next_width = cluster.new_gpus, queue.next_width
        interruption.on_cancel, interruption.on_dump = dispatcher.request_cancel, dispatcher.request_dump
        try:
            await dispatcher.run()
        finally:
            await self._finish_session()
            kept = (note for note in context.history.notes if note not in context.notes)
            notes = [*runner.notes, *context.ports.notes, *kept]
            if num := planned.collected.num_workers:
                notes.append(f"-n {num} of pytest-xdist is set to 0: rlharness itself runs --cpu-units files at once")
            if (measured := planned.collected.coverage) is not None:
                invocation = self.options.invocation
                work = partial(combine_coverage, self.directory, invocation.cwd, invocation.environ, measured)
                notes.append(await asyncio.to_thread(work))
            self.notes = tuple(notes)
            self.isolation = (*merge_notes(runner.isolation), *context.suite.isolation)
        self.state.check_sum()

    async def _finish_session(self) -> None:
        """Let pytest end its session, keep what it printed, and note an end that no test explains."""
        suite, log = self.context.suite, self.directory / "session.log"
        results = self.state.results.values()
        has_failed = any(result.outcome.is_failure for result in results)  # accepted or not
        limit_s = self.options.grace_s if self.interruption.by else max(self.options.grace_s, SESSION_END_S)
        # Files that failed without a test that has: only the run knows of these.
        untold = [each for each in results if each.is_failure and not any(map(each.tests.__getitem__, NAMED))]
        if untold:
            with suppress(TimeoutError):
                told = suite.replay((), {each.unit.file_path: each.reason for each in untold})
                await asyncio.wait_for(told, limit_s)
        reason = await suite.finish(limit_s, has_failed)
        with suppress(OSError):
            shutil.copyfile(suite.log, log)
        if reason and not self.interruption.by:  # who interrupts a run does not wait for its end
            self.session_failures = (SessionFailure(str(log), reason, suite.output()),)

    async def _prepare(self) -> "tuple[Planned, Preflight | None]":
        """What there is to run, and what the network asks of it; nothing where a run around this one has asked it."""
        planned, environ = await collect_and_plan(self.context), self.options.invocation.environ
        units, rootdir = planned.collected.units, planned.collected.rootdir
        is_done = PREFLIGHT in environ or self.options.ray is not None  # this machine's network says nothing of theirs
        if is_done or not any(needs_network(unit, rootdir) for unit in units):
            return planned, None
        from harness.machine.network.preflight import preflight  # late: few runs need it

        return planned, await preflight(environ, self.context.clock)

    def _unit_runner(self, collected: Collected, pins: Mapping[str, str] | None) -> UnitRunner:
        context = self.context
        return UnitRunner(
            options=self.options,
            collected=collected,
            attempts=context.supervisors,
            suite=context.suite,
            watch=GpuWatch(context.gpus.meter, context.clock, context.gpus.inventory.gpus),
            ports=context.ports,
            run_id=context.run_id,
            run_directory=self.directory,
            scratch=context.scratch,
            t=self.recorder.t,
            pins=pins,
            num_slots=self.options.cpu_units + len(context.gpus.inventory.gpus),
            num_gpus=0 if context.gpus.inventory.pretended else len(context.gpus.inventory.gpus),
            check_leaning=LeaningCheck(self.options.check_leaning).settle,
            retries=Retries(self.options.retries, runs_rests=not stops_early(self.options.invocation.trailing)),
        )

    def _with_losses(self, finished: events.RunFinished) -> events.RunFinished:
        """With what reporters could not write: noted, and where somebody has asked for it, never an exit code of 0."""
        lost = [reporter for reporter in self.reporters if reporter.failure is not None]
        code = finished.exit_code or (ExitCode.USAGE_ERROR if any(each.is_asked for each in lost) else ExitCode.OK)
        return replace(finished, exit_code=int(code), notes=(*finished.notes, *(each.loss for each in lost)))

    def _started(self) -> events.RunStarted:
        context, inventory = self.context, self.context.gpus.inventory
        refused = [f"containment {backend} is unavailable: {why}" for backend, why in context.backends.refused.items()]
        return events.RunStarted(
            t=self.recorder.t(),
            run_id=context.run_id,
            directory=str(self.directory),
            gpus=tuple(str(gpu) for gpu in inventory.gpus),
            left_out=tuple(f"{out.index} {out.model} {out.gpu_id}: {out.reason}" for out in inventory.left_out),
            notes=(*context.notes, *refused),
            containment=context.backends.chosen,
            cpu_units=self.options.cpu_units,
            shard=str(self.options.shard or ""),
        )

    def _collected(self, planned: Planned, notes: Sequence[str]) -> events.CollectionFinished:
        t, expected = self.recorder.t(), {job.index: job.expected_s for job in planned.plan.order}
        return events.CollectionFinished(
            t=t,
            units=planned.collected.units,
            expected_s=tuple(expected.get(number, 0.0) for number in range(len(planned.collected.units))),
            planned_makespan_s=planned.plan.makespan_s,
            lower_bound_s=planned.plan.bound.value_s,
            duration_s=t,
            splits=planned.collected.splits,
            notes=(*planned.collected.notes, *notes),
            shard=planned.shard,
            num_estimated=len(planned.estimated),
            num_deselected=sum(result.is_deselected for result in planned.collected.kept.values()),
        )

    def _finished(self, failure: Exception | None) -> events.RunFinished:
        """The last event: the closing figures, from the durations as measured."""
        is_users = isinstance(failure, HarnessError)
        code = exit_code(
            self.state,
            allow_missing_gpus=self.options.allow_missing_gpus,
            internal_error=failure is not None and not is_users,
            session_failed=bool(self.session_failures),
        )
        ran = [result for result in self.state.results.values() if result.duration_s and not result.resumed_from]
        bound = lower_bound([Job(n, r.unit.need, r.duration_s) for n, r in enumerate(ran)], new_table(self.context))
        figures = closing_figures(
            self.state,
            t=self.recorder.t(),
            exit_code=failure.exit_code if isinstance(failure, HarnessError) else code,
            lower_bound_s=bound.value_s,
        )
        error = "" if failure is None else str(failure) if is_users else f"{type(failure).__name__}: {failure}"
        return replace(
            figures, error=error, notes=self.notes, isolation=self.isolation, session_failures=self.session_failures
        )
