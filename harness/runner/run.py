"""`rlharness run` and `rlharness plan` from options to exit code: the order of the steps, and who owns what.

    probe the machine ─▶ RunStarted ─▶ collect ─▶ pack ─▶ CollectionFinished ─▶ dispatch ─▶ RunFinished

Signals are taken from the first step on: before anything is dispatched they end the collection, afterwards they
are the dispatcher's.
"""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TextIO

from harness.clock import Clock, SystemClock
from harness.exit_codes import ExitCode
from harness.machine.child_env import child_env
from harness.machine.claims import Claims
from harness.machine.gpus import NvmlMeter, read_inventory
from harness.machine.inventory import Inventory
from harness.machine.meter import MemoryMeter, NoMeter
from harness.machine.ports import PortBlocks, read_ephemeral_range
from harness.machine.scratch import make_scratch_root, remove_tree
from harness.reporters.json_summary import summary_json
from harness.reporters.base import Guarded
from harness.reporters.chart import chart, plan_json
from harness.reporters.make import ReportOptions, make_reporters
from harness.runner import events, packing
from harness.runner.attempt import AttemptSpec, Supervisors, Tiers, probe_tiers
from harness.runner.bounds import Bound, lower_bound
from harness.runner.collect import Collected, CollectOptions, collect
from harness.runner.dispatcher import CANCEL_SIGNALS, Dispatcher, Recorder
from harness.runner.first_fit import Job, Queue
from harness.runner.history import History
from harness.runner.leases import LeaseTable
from harness.runner.options import Invocation, RunOptions, make_options, terminal_columns
from harness.runner.run_directory import make_run_directory
from harness.runner.stats import RunState, closing_figures, exit_code
from harness.runner.unit_run import UnitRunner, pytest_command
from harness.runner.units import Unit, UnitResult


@dataclass(slots=True)
class Stage:
    """What one run stands on: the machine as it was read, and the things that must be given back."""

    options: RunOptions
    clock: Clock
    run_id: str
    directory: Path
    scratch: Path
    tiers: Tiers
    inventory: Inventory
    supervisors: Supervisors
    claims: Claims
    ports: PortBlocks
    history: History
    history_notes: tuple[str, ...]
    notes: tuple[str, ...]


def run_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness run`; HarnessError for what the user can mend."""
    return asyncio.run(_Run(make_options(invocation, arguments)).carry_out())


def plan_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness plan`: collect, pack, show."""
    return asyncio.run(_show_plan(make_options(invocation, arguments), arguments.get("width")))


@dataclass(frozen=True, slots=True)
class Planned:
    """What collection found and packing made of it."""

    collected: Collected
    table: LeaseTable
    plan: packing.Plan


class _Run:
    """One run."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.state = RunState()
        self.collecting: asyncio.Task[Planned] | None = None
        self.dispatcher: Dispatcher | None = None

    async def carry_out(self) -> ExitCode:
        with set_stage(self.options, self.clock) as stage, _signals(self.on_signal):
            recorder = self._recorder(stage)
            try:
                recorder.take(_started(stage, recorder.t()))
                await self._collect_and_dispatch(stage, recorder)
                finished = self._finish(recorder, stage)
            finally:
                recorder.close()
        if self.options.json:
            print(json.dumps(summary_json(self.state, finished)))
        return ExitCode(finished.exit_code)

    def on_signal(self, signum: signal.Signals) -> None:
        """SIGUSR1 asks what runs; the others end the run, a second one at once."""
        if self.dispatcher is not None:
            if signum is signal.SIGUSR1:
                self.dispatcher.request_dump()
            else:
                self.dispatcher.request_cancel(signum.name)
        elif self.collecting is not None and signum is not signal.SIGUSR1:
            self.collecting.cancel(signum.name)

    async def _collect_and_dispatch(self, stage: Stage, recorder: Recorder) -> None:
        """Everything between RunStarted and RunFinished; an interrupted collection dispatches nothing."""
        self.collecting = asyncio.create_task(collect_and_plan(stage, recorder))
        try:
            planned = await self.collecting
        except asyncio.CancelledError as cancelled:
            reason = str(cancelled.args[0]) if cancelled.args else "cancellation"
            recorder.take(events.CancelRequested(recorder.t(), f"{reason} during collection", kill=False))
            return
        units = planned.collected.units
        keeper = _HistoryKeeper(stage.history, planned.collected.sizes_bytes)
        recorder.add(Guarded(keeper, "the history of durations", _say))
        recorder.take(_collection_finished(units, planned.plan, recorder.t()))
        runner = self._unit_runner(stage, planned.collected, recorder)
        self.dispatcher = Dispatcher(units, Queue(planned.plan.order), planned.table, runner, recorder)
        await self.dispatcher.run()
        self.state.check_sum()
        for note in (*runner.notes, *stage.history.notes[len(stage.history_notes) :]):
            _say(note)

    def _unit_runner(self, stage: Stage, collected: Collected, recorder: Recorder) -> UnitRunner:
        return UnitRunner(
            options=self.options,
            collected=collected,
            supervisors=stage.supervisors,
            meter=_meter(stage.inventory),
            ports=stage.ports,
            clock=self.clock,
            run_id=stage.run_id,
            run_directory=stage.directory,
            scratch=stage.scratch,
            t=recorder.t,
        )

    def _recorder(self, stage: Stage) -> Recorder:
        """The display goes to stdout, or to stderr where stdout is asked to be JSON."""
        stream: TextIO = sys.stderr if self.options.json else sys.stdout
        files = (stage.directory / "events.jsonl", *([self.options.events_file] if self.options.events_file else []))
        wanted = ReportOptions(self.options.live, self.options.colour, files, self.options.junit_file)
        return Recorder(self.state, make_reporters(wanted, stream=stream, clock=self.clock, say=_say), self.clock)

    def _finish(self, recorder: Recorder, stage: Stage) -> events.RunFinished:
        """Compute the closing figures from the durations as measured, and record the last event."""
        code = exit_code(self.state, allow_missing_gpus=self.options.allow_missing_gpus)
        ran = [result for result in self.state.results.values() if result.duration_s]
        bound = _measured_bound(ran, stage)
        finished = closing_figures(
            self.state,
            t=recorder.t(),
            exit_code=code,
            lower_bound_s=bound.value_s,
            bounding_unit=ran[bound.unit].unit.path if bound.unit is not None else "",
        )
        recorder.take(finished)
        return finished


class _HistoryKeeper:
    """Records each unit's duration as its outcome comes: an interrupted run has taught something too."""

    def __init__(self, history: History, sizes: Mapping[str, int]) -> None:
        self._history = history
        self._sizes_bytes = sizes

    def on_event(self, event: events.Event, state: RunState) -> None:
        if isinstance(event, events.UnitFinished) and event.result.duration_s:
            self._history.record(event.result, self._sizes_bytes.get(event.result.unit.path, 0))

    def close(self) -> None:
        """The stage closes the history."""


async def collect_and_plan(stage: Stage, recorder: Recorder) -> Planned:
    """Find the units, expect their durations, pack them."""
    options = stage.options
    wanted = CollectOptions(
        cwd=options.invocation.cwd,
        directory=stage.directory / "collection",
        timeout_s=options.collect_timeout_s,
        limit=options.cpu_units,
        pytest_args=options.invocation.pytest_args,
        needs=options.needs,
        distrusted=stage.history.to_import(options.root),
    )
    collected = await collect(
        options.paths,
        wanted,
        stage.supervisors,
        partial(_collection_spec, stage),
        on_progress=lambda done, total: recorder.take(events.CollectionProgress(recorder.t(), done, total)),
    )
    sizes = {unit.path: collected.sizes_bytes.get(unit.path, 0) for unit in collected.units}
    expected = stage.history.expectations(sizes)
    jobs = [
        Job(number, unit.need, expected[unit.path].seconds, expected[unit.path].spread)
        for number, unit in enumerate(collected.units)
        if unit.can_run
    ]
    table = LeaseTable(stage.inventory, stage.options.cpu_units, stage.options.mix_models)
    return Planned(collected, table, packing.plan(jobs, table))


def _collection_spec(stage: Stage, pytest_args: tuple[str, ...], directory: Path, timeout_s: float) -> AttemptSpec:
    """A pytest process that only collects; its cards are the ones this process sees."""
    options = stage.options
    tmpdir = stage.scratch / "c"
    tmpdir.mkdir(exist_ok=True)
    marker = f"{stage.run_id}-c{directory.name}"
    return AttemptSpec(
        argv=(*pytest_command(options), *pytest_args),
        cwd=str(options.invocation.cwd),
        env=child_env(
            options.invocation.environ,
            gpus=None,
            tmpdir=str(tmpdir),
            marker=marker,
            master_port=stage.ports.master_port(0),
        ),
        directory=str(directory),
        marker=marker,
        timeout_s=timeout_s,
        startup_timeout_s=inf,
        grace_s=options.grace_s,
    )


async def _show_plan(options: RunOptions, width: int | None) -> ExitCode:
    clock = SystemClock()
    with set_stage(options, clock) as stage:
        recorder = Recorder(RunState(), [], clock)
        planned = await collect_and_plan(stage, recorder)
    names = [unit.path for unit in planned.collected.units]
    for note in (*stage.notes, *planned.collected.notes):
        _say(note)
    if options.json:
        print(json.dumps(plan_json(planned.plan, names)))
    else:
        print(chart(planned.plan, names, width=width or terminal_columns(), colour=options.colour))
    return ExitCode.OK


@contextmanager
def set_stage(options: RunOptions, clock: Clock) -> Iterator[Stage]:
    """Read the machine and make the run's directories; everything is given back in the end."""
    with ExitStack() as stack:
        tiers = probe_tiers(options.containment)
        claims = stack.enter_context(Claims())
        inventory = read_inventory(options.gpus, options.invocation.environ, claims)
        scratch, scratch_note = make_scratch_root(options.invocation.environ)
        stack.callback(remove_tree, scratch)
        run_id, directory = make_run_directory(options.root, clock.wall())
        home = options.root / ".rlharness"
        history = stack.enter_context(History() if options.history_free else History.open(home / "history.sqlite"))
        yield Stage(
            options=options,
            clock=clock,
            run_id=run_id,
            directory=directory,
            scratch=Path(scratch),
            tiers=tiers,
            inventory=inventory,
            supervisors=Supervisors(tiers.chosen, run_id, _py_spy()),
            claims=claims,
            ports=PortBlocks(claims, read_ephemeral_range()),
            history=history,
            history_notes=history.notes,
            notes=tuple(note for note in (inventory.note, scratch_note, *history.notes) if note),
        )


@contextmanager
def _signals(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Have the event loop hear the signals that end or question a run; one that was ignored stays ignored."""
    loop = asyncio.get_running_loop()
    heard = [s for s in (*CANCEL_SIGNALS, signal.SIGUSR1) if signal.getsignal(s) is not signal.SIG_IGN]
    for signum in heard:
        loop.add_signal_handler(signum, on_signal, signum)
    try:
        yield
    finally:
        for signum in heard:
            loop.remove_signal_handler(signum)


def _started(stage: Stage, t: float) -> events.RunStarted:
    refused = [f"containment {tier} is refused here: {why}" for tier, why in stage.tiers.refused.items()]
    return events.RunStarted(
        t=t,
        run_id=stage.run_id,
        directory=str(stage.directory),
        gpus=tuple(str(gpu) for gpu in stage.inventory.gpus),
        left_out=tuple(f"{out.index} {out.model} {out.gpu_id}: {out.reason}" for out in stage.inventory.left_out),
        notes=(*stage.notes, *refused),
        containment=stage.tiers.chosen,
        cpu_units=stage.options.cpu_units,
    )


def _collection_finished(units: Sequence[Unit], plan: packing.Plan, t: float) -> events.CollectionFinished:
    expected = {job.index: job.expected_s for job in plan.order}
    return events.CollectionFinished(
        t=t,
        units=tuple(units),
        expected_s=tuple(expected.get(number, 0.0) for number in range(len(units))),
        planned_makespan_s=plan.makespan_s,
        lower_bound_s=plan.bound.value_s,
        duration_s=t,
    )


def _measured_bound(ran: Sequence[UnitResult], stage: Stage) -> Bound:
    table = LeaseTable(stage.inventory, stage.options.cpu_units, stage.options.mix_models)
    return lower_bound([Job(n, result.unit.need, result.duration_s) for n, result in enumerate(ran)], table)


def _meter(inventory: Inventory) -> MemoryMeter:
    return NoMeter() if inventory.pretended or not inventory.gpus else NvmlMeter()


def _py_spy() -> str:
    """The py-spy of this environment, else one on the path; empty without any."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _say(text: str) -> None:
    print(f"rlharness: {text.removeprefix('rlharness: ')}", file=sys.stderr, flush=True)
