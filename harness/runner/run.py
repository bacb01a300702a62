"""`rlharness run` and `rlharness plan` from options to exit code: the order of the steps, and who owns what.

    read the cards ─▶ stage ─▶ RunStarted ─▶ collect, pack, network ─▶ CollectionFinished ─▶ dispatch ─▶ RunFinished

Signals are heard from the first step on: before anything is dispatched they end what is awaited, afterwards they are
the dispatcher's. Once there is a RunStarted there is a RunFinished, whatever ends the run.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from harness.clock import Clock, SystemClock
from harness.errors import HarnessError
from harness.exit_codes import ExitCode
from harness.machine.card_watch import CardWatch
from harness.machine.claims import Claims
from harness.machine.network.preflight import Preflight
from harness.reporters.base import Guarded, say, show
from harness.reporters.chart import chart, plan_json
from harness.reporters.json_summary import summary_json
from harness.reporters.make import ReportOptions, make_reporters
from harness.reporters.summary import REASON_OF_CODE
from harness.runner import events
from harness.runner.bounds import lower_bound
from harness.runner.collect import Collected
from harness.runner.dispatcher import Dispatcher, Recorder
from harness.runner.first_fit import Job, Queue
from harness.runner.history import RAN_TO_THE_END, History
from harness.runner.interruption import Interruption
from harness.runner.network_pins import network_pins
from harness.runner.options import Invocation, RunOptions, make_options, runs_parts_of_files, terminal_columns
from harness.runner.planning import Planned, collect_and_plan, new_table
from harness.runner.run_directory import make_run_directory
from harness.runner.stage import Stage, read_cards, set_stage
from harness.runner.stats import RunState, closing_figures, exit_code
from harness.runner.unit_run import UnitRunner, why_uncollected
from harness.runner.units import UnitResult


def run_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness run`; HarnessError for what the user can mend."""
    return asyncio.run(_carry_out_run(make_options(invocation, arguments)))


def plan_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness plan`: collect, pack, show."""
    return asyncio.run(_carry_out_plan(make_options(invocation, arguments), arguments.get("width")))


async def _carry_out_run(options: RunOptions) -> ExitCode:
    clock = SystemClock()
    with Interruption() as interruption, Claims() as claims:
        cards = await interruption.unless_interrupted(read_cards(options, claims))
        if cards is None:
            return _interrupted(interruption)
        async with set_stage(options, clock, cards, claims, is_run=True) as stage:
            return await _Run(stage, make_run_directory(options.root, stage.run_id), interruption).carry_out()


async def _carry_out_plan(options: RunOptions, width: int | None) -> ExitCode:
    with Interruption() as interruption, Claims() as claims:
        cards = await interruption.unless_interrupted(read_cards(options, claims))
        if cards is None:
            return _interrupted(interruption)
        async with set_stage(options, SystemClock(), cards, claims, is_run=False) as stage:
            planned = await interruption.unless_interrupted(
                collect_and_plan(stage, lambda num_done, num_total: None, finds_node_ids=True)
            )
            if planned is None:
                return _interrupted(interruption)
            for note in dict.fromkeys((*stage.notes, *planned.collected.notes, *stage.history.notes)):
                say(note)
            _show(planned, options, width)
    return _code_of_plan(planned.collected)


def _code_of_plan(collected: Collected) -> ExitCode:
    """With what a run of it would end, as far as collection shows; said where nothing else says why."""
    if not all(unit.can_run for unit in collected.units):
        return ExitCode.TESTS_FAILED
    if collected.units and not collected.not_found:
        return ExitCode.OK
    code = ExitCode.USAGE_ERROR if collected.not_found else ExitCode.NOTHING_COLLECTED
    say(f"exit code {code}: {REASON_OF_CODE[code]}")
    return code


def _interrupted(interruption: Interruption) -> ExitCode:
    say(f"interrupted by {interruption.by} before anything was run")
    return ExitCode.INTERRUPTED


def _show(planned: Planned, options: RunOptions, width: int | None) -> None:
    """Print the plan; what cannot be collected, or names no test, stands among what cannot run."""
    units, not_found = planned.collected.units, planned.collected.not_found
    broken = tuple(
        (n, f"it cannot be collected: {why_uncollected(unit)}") for n, unit in enumerate(units) if not unit.can_run
    )
    broken += tuple((n, "; ".join(not_found[u.path].splitlines())) for n, u in enumerate(units) if u.path in not_found)
    never = tuple(
        (n, why + planned.table.who_keeps_it(planned.collected.asks.get(units[n].path, {})))
        for n, why in planned.plan.never
    )
    plan = replace(planned.plan, never=(*never, *broken))
    names = [unit.path for unit in units]
    if options.json:
        show(json.dumps(plan_json(plan, names)))
    else:
        show(chart(plan, names, width=width or terminal_columns(), colour=options.colour).rstrip("\n"))


class _Run:
    """One run on its stage."""

    def __init__(self, stage: Stage, directory: Path, interruption: Interruption) -> None:
        self.stage = stage
        self.options = stage.options
        self.directory = directory
        self.interruption = interruption
        self.state = RunState()
        self.notes: tuple[str, ...] = ()
        self.recorder = self._make_recorder(stage.clock)

    async def carry_out(self) -> ExitCode:
        recorder, failure = self.recorder, None
        self.interruption.on_dump = lambda: recorder.take(events.DumpRequested(recorder.t()))
        try:
            recorder.take(self._started())
            await self._collect_and_dispatch()
        except Exception as error:  # whatever it is: the record gets its end first
            failure = error
        try:
            finished = self._finished(failure)
            for reporter in self.reporters:
                if reporter.is_late:  # whether its file is there is a part of how the run has ended
                    reporter.on_event(finished, self.state)
            recorder.take(self._with_losses(finished))
            finished = self._with_losses(finished)
        finally:
            recorder.close()
        if self.options.json:
            show(json.dumps(summary_json(self.state, finished)))
        if failure is not None:
            if isinstance(failure, HarnessError):
                failure.in_record = True
            raise failure
        return ExitCode(finished.exit_code)

    async def _collect_and_dispatch(self) -> None:
        """Everything between RunStarted and RunFinished; an interrupted collection dispatches nothing."""
        stage, recorder, interruption = self.stage, self.recorder, self.interruption
        prepared = await interruption.unless_interrupted(self._prepare())
        if prepared is None:
            reason = f"{interruption.by} during collection"
            recorder.take(events.CancelRequested(recorder.t(), reason, kill=False))
            return
        planned, network = prepared
        units = planned.collected.units
        if not runs_parts_of_files(self.options.invocation.trailing):
            recorder.add(Guarded(_HistoryKeeper(stage.history, planned.collected), "the history of durations", say))
        recorder.take(self._collected(planned, network.notes if network else ()))
        runner = self._unit_runner(planned.collected, network.pins if network else None)
        dispatcher = Dispatcher(units, Queue(planned.plan.order), planned.table, runner, recorder)
        interruption.on_cancel, interruption.on_dump = dispatcher.request_cancel, dispatcher.request_dump
        try:
            await dispatcher.run()
        finally:
            kept = (note for note in stage.history.notes if note not in stage.notes)
            self.notes = (*_undone(planned.collected), *runner.notes, *kept)
        self.state.check_sum()

    async def _prepare(self) -> tuple[Planned, Preflight | None]:
        """What there is to run, and what the network asks of it."""
        stage = self.stage
        planned = await collect_and_plan(stage, self._on_progress)
        collected = planned.collected
        return planned, await network_pins(collected.units, collected.rootdir, self.options.invocation, stage.clock)

    def _on_progress(self, num_done: int, num_total: int) -> None:
        self.recorder.take(events.CollectionProgress(self.recorder.t(), num_done, num_total))

    def _unit_runner(self, collected: Collected, pins: Mapping[str, str] | None) -> UnitRunner:
        stage = self.stage
        return UnitRunner(
            options=self.options,
            collected=collected,
            attempts=stage.supervisors,
            watch=CardWatch(stage.cards.meter, stage.clock),
            ports=stage.ports,
            run_id=stage.run_id,
            run_directory=self.directory,
            scratch=stage.scratch,
            t=self.recorder.t,
            pins=pins,
        )

    def _make_recorder(self, clock: Clock) -> Recorder:
        """The display goes to stdout, or to stderr where stdout is asked to be JSON."""
        options = self.options
        stream: TextIO = sys.stderr if options.json else sys.stdout
        record = self.directory / "events.jsonl"
        wanted = ReportOptions(options.live, options.colour, record, options.events_file, options.junit_file)
        self.reporters = make_reporters(wanted, stream=stream, clock=clock, say=say)
        return Recorder(self.state, self.reporters, clock)

    def _with_losses(self, finished: events.RunFinished) -> events.RunFinished:
        """With what reporters could not write: noted, and where somebody has asked for it, never an exit code of 0."""
        lost = [reporter for reporter in self.reporters if reporter.failure is not None]
        code = finished.exit_code or (ExitCode.USAGE_ERROR if any(each.is_asked for each in lost) else ExitCode.OK)
        return replace(finished, exit_code=int(code), notes=(*finished.notes, *(each.loss for each in lost)))

    def _started(self) -> events.RunStarted:
        stage, inventory = self.stage, self.stage.cards.inventory
        refused = [f"containment {tier} is refused here: {why}" for tier, why in stage.tiers.refused.items()]
        return events.RunStarted(
            t=self.recorder.t(),
            run_id=stage.run_id,
            directory=str(self.directory),
            gpus=tuple(str(gpu) for gpu in inventory.gpus),
            left_out=tuple(f"{out.index} {out.model} {out.gpu_id}: {out.reason}" for out in inventory.left_out),
            notes=(*stage.notes, *refused),
            containment=stage.tiers.chosen,
            cpu_units=self.options.cpu_units,
        )

    def _collected(self, planned: Planned, notes: Sequence[str]) -> events.CollectionFinished:
        t = self.recorder.t()
        return events.CollectionFinished(
            t=t,
            units=planned.collected.units,
            expected_s=planned.expected_s(),
            planned_makespan_s=planned.plan.makespan_s,
            lower_bound_s=planned.plan.bound.value_s,
            duration_s=t,
            notes=(*planned.collected.notes, *notes),
        )

    def _finished(self, failure: Exception | None) -> events.RunFinished:
        """The last event: the closing figures, from the durations as measured."""
        is_users = isinstance(failure, HarnessError)
        code = exit_code(
            self.state,
            allow_missing_gpus=self.options.allow_missing_gpus,
            internal_error=failure is not None and not is_users,
        )
        ran = [result for result in self.state.results.values() if result.duration_s]
        bound = lower_bound([Job(n, r.unit.need, r.duration_s) for n, r in enumerate(ran)], new_table(self.stage))
        figures = closing_figures(
            self.state,
            t=self.recorder.t(),
            exit_code=failure.exit_code if isinstance(failure, HarnessError) else code,
            lower_bound_s=bound.value_s,
            bounding_unit=_worth_splitting(ran, bound.unit),
        )
        error = "" if failure is None else str(failure) if is_users else f"{type(failure).__name__}: {failure}"
        return replace(figures, error=error, notes=self.notes)


def _undone(collected: Collected) -> tuple[str, ...]:
    """What pytest's arguments ask for, and is not done."""
    if not collected.num_workers:
        return ()
    return (f"-n {collected.num_workers} of pytest-xdist is set to 0: files are distributed here, --cpu-units at once",)


def _worth_splitting(ran: Sequence[UnitResult], number: int | None) -> str:
    """The path of the unit that sets the bound, where splitting it helps: others ran too, and it has several tests.

    Of one that was ended nobody knows the duration.
    """
    if number is None or len(ran) == 1:
        return ""
    result = ran[number]
    return result.unit.path if result.tests.total > 1 and result.outcome in RAN_TO_THE_END else ""


class _HistoryKeeper:
    """Records each unit's duration as its outcome comes: an interrupted run has taught something too."""

    def __init__(self, history: History, collected: Collected) -> None:
        self._history = history
        self._sizes_bytes = collected.sizes_bytes

    def on_event(self, event: events.Event, state: RunState) -> None:
        if isinstance(event, events.UnitFinished) and event.result.duration_s:
            self._history.record(event.result, self._sizes_bytes.get(event.result.unit.path, 0))

    def close(self) -> None:
        """The stage closes the history."""
