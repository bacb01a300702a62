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
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harness.clock import Clock, SystemClock
from harness.exit_codes import ExitCode
from harness.machine.claims import Claims
from harness.machine.gpus import NvmlMeter, read_inventory
from harness.machine.inventory import Inventory
from harness.machine.meter import MemoryMeter, NoMeter
from harness.machine.ports import PortBlocks, read_ephemeral_range
from harness.machine.scratch import make_scratch_root, remove_tree
from harness.reporters.json_summary import summary_json
from harness.reporters.make import ReportOptions, make_reporters
from harness.runner import events
from harness.runner.attempt import Supervisors, Tiers, probe_tiers
from harness.runner.bounds import lower_bound
from harness.runner.collect import Collected, collect
from harness.runner.dispatcher import CANCEL_SIGNALS, Dispatcher, Recorder
from harness.runner.history import History
from harness.runner.leases import LeaseTable
from harness.runner.options import Invocation, RunOptions, make_options
from harness.runner.packing import Job, Plan, Queue, make_plan
from harness.runner.run_directory import make_run_directory
from harness.runner.stats import RunState, closing_figures, exit_code
from harness.runner.unit_run import Suite, UnitRunner
from harness.runner.units import Unit


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
    history: History
    notes: tuple[str, ...]


def run_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness run`; HarnessError for what the user can mend."""
    return asyncio.run(_Run(make_options(invocation, arguments)).carry_out())


def plan_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness plan`: collect, pack, show."""
    return asyncio.run(_show_plan(make_options(invocation, arguments), arguments.get("width")))


class _Run:
    """One run."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.state = RunState()
        self.collecting: asyncio.Task[tuple[Collected, Plan]] | None = None
        self.dispatcher: Dispatcher | None = None

    async def carry_out(self) -> ExitCode:
        with set_stage(self.options, self.clock) as stage, _signals(self.on_signal):
            recorder = self._recorder(stage)
            try:
                recorder.take(_started(stage, recorder.t()))
                plan = await self._collect_and_dispatch(stage, recorder)
                finished = self._finish(recorder, stage, plan)
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

    async def _collect_and_dispatch(self, stage: Stage, recorder: Recorder) -> Plan | None:
        """Everything between RunStarted and RunFinished; None when collection was interrupted."""
        self.collecting = asyncio.create_task(collect_and_plan(stage, recorder.t, recorder.take))
        try:
            collected, plan = await self.collecting
        except asyncio.CancelledError as cancelled:
            reason = str(cancelled.args[0]) if cancelled.args else "the event loop"
            recorder.take(events.CancelRequested(recorder.t(), f"{reason}, during collection", kill=False))
            return None
        recorder.take(_collection_finished(stage, collected.units, plan, recorder.t()))
        runner = self._unit_runner(stage, collected, recorder)
        table = _lease_table(stage)
        self.dispatcher = Dispatcher(collected.units, Queue(plan), table, runner, recorder)
        await self.dispatcher.run()
        for note in runner.notes:
            print(f"rlharness: {note}", file=sys.stderr)
        self.state.check_sum()
        return plan

    def _unit_runner(self, stage: Stage, collected: Collected, recorder: Recorder) -> UnitRunner:
        return UnitRunner(
            options=self.options,
            suite=Suite(collected.rootdir, collected.inifile),
            supervisors=stage.supervisors,
            meter=_meter(stage.inventory),
            ports=PortBlocks(stage.claims, read_ephemeral_range()),
            history=stage.history,
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
        reporters = make_reporters(
            wanted, stream=stream, clock=self.clock, say=lambda text: print(text, file=sys.stderr, flush=True)
        )
        return Recorder(self.state, reporters, self.clock)

    def _finish(self, recorder: Recorder, stage: Stage, plan: Plan | None) -> events.RunFinished:
        """Compute the closing figures from the durations as measured, and record the last event."""
        code = exit_code(self.state, allow_missing_gpus=self.options.allow_missing_gpus)
        measured = [result for result in self.state.results.values() if result.duration_s]
        jobs = [Job(number, result.unit.need, result.duration_s) for number, result in enumerate(measured)]
        bound = lower_bound(jobs, stage.inventory, stage.options.cpu_units)
        unit = measured[bound.bounding_unit].unit.path if bound.bounding_unit is not None else ""
        finished = closing_figures(
            self.state, t=recorder.t(), exit_code=code, lower_bound_s=bound.value_s, bounding_unit=unit
        )
        recorder.take(finished)
        return finished


async def collect_and_plan(
    stage: Stage, t: Callable[[], float], take: Callable[[events.Event], None]
) -> tuple[Collected, Plan]:
    """Find the units, expect their durations, pack them."""
    collected = await collect(stage, on_progress=lambda done, total: take(events.CollectionProgress(t(), done, total)))
    expected = stage.history.expected_s(collected.units)
    jobs = [Job(number, unit.need, expected[unit.path]) for number, unit in enumerate(collected.units)]
    return collected, make_plan(jobs, stage.inventory, stage.options.cpu_units, mix_models=stage.options.mix_models)


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
        history = stack.enter_context(History.open(options.root / ".rlharness" / "history.sqlite"))
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
            history=history,
            notes=tuple(note for note in (inventory.note, scratch_note, history.note) if note),
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


def _meter(inventory: Inventory) -> MemoryMeter:
    return NoMeter() if inventory.pretended or not inventory.gpus else NvmlMeter()


def _py_spy() -> str:
    """The py-spy of this environment, else one on the path; empty without any."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""
