"""`rlharness replay ... --break-on nan --until 'reward<0.2'` from arguments to exit code: one run, to where it holds.

    RUN │ SCENARIO │ command ─▶ envelope, watched by Breakpoints ─▶ one run ─▶ where it has ended ─▶ text, JSON, bundle

A condition that is met ends the run in the middle of its step. What was recorded of the step is kept, and is what the
bundle holds, with the checkpoint before it.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import BundleError, UsageError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.core.text import one_line
from harness.lab.experiments.break_conditions import STOP, conditions_of, read_report, refuse_divergence, watched
from harness.lab.experiments.bundles.making import bundle_place, write_bundle_of
from harness.lab.experiments.out_directory import OutDirectory, out_directory, place_of
from harness.lab.experiments.program_input import keep_input, read_input
from harness.lab.experiments.recorded_run import RecordedRun, read_recorded_run
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.session import open_session, refuse
from harness.lab.experiments.supervised_runs import Place
from harness.lab.replay.plan import REPLAYS, envelopes_of, program_of
from harness.lab.reproduce.plan import (
    check_machine,
    free_overrides,
    named_run,
    names_recorded_run,
    plan_step,
    refuse_options,
)
from harness.lab.reproduce.stopped import Stopped, StopPlan
from harness.process.run_directory import new_run_id
from harness.recording.conditions import Condition, refuse_unknown, unknown_names
from harness.render.console import say, show
from harness.render.run_lines import RunLines
from harness.render.stopping import stopped_json, stopped_text
from harness.trace.reader import read_trace


def run_until(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness replay` with conditions; HarnessError for what the user can mend."""
    plan = plan_stop(invocation, arguments)
    bundle = bundle_place(invocation.cwd, arguments["bundle"]) if arguments["bundle"] else None
    own_id = new_run_id(SystemClock().wall())
    data = read_input(0, say) if plan.envelope.call is None else b""
    out = out_directory(invocation.cwd, arguments["out"], REPLAYS, own_id)
    stdin = keep_input(data, out.path)
    place = Place(plan.program, invocation.cwd, invocation.environ, own_id, arguments["timeout"] or inf, stdin)
    stopped = asyncio.run(_record(plan, out, place))
    if stopped.stop is not None and not stopped.interrupted_by:
        stopped = _bundled(stopped, bundle or out.path / f"step-{stopped.stop.step}.rlb", arguments)
    if arguments["json"]:
        show(json.dumps(stopped_json(stopped)))
    else:
        show(stopped_text(stopped, colour=wants_colour(arguments["color"], invocation)))
    return stopped.exit_code


def plan_stop(invocation: Invocation, arguments: Mapping[str, Any]) -> StopPlan:
    """The plan of a command line; UsageError for what cannot be used."""
    conditions = conditions_of(arguments)
    for option in ("op", "runs", "vary"):
        if arguments[option]:
            raise UsageError(
                f"--{option} with a condition",
                legal="one run, which ends where the condition holds",
                remedy="look closer at its bundle: rlharness replay --bundle FILE --op"
                if option == "op"
                else f"leave --{option} out",
            )
    if names_recorded_run(invocation.cwd, arguments["scenario"]):
        run = named_run(invocation, arguments, arguments["scenario"])
        _check_names(conditions, run)
        against = _reference(invocation, arguments) or run.directory
        return StopPlan(_of_run(run, arguments), check_machine(invocation), conditions, against)
    if arguments["step"] is not None:
        raise UsageError(
            "--step with a condition", legal="of a recorded run only", remedy="the condition says where it ends"
        )
    reference = _reference(invocation, arguments)
    if reference is None:
        refuse_divergence(
            conditions,
            legal="the directory of a recorded run, or --against DIR",
            remedy="record one first: rlharness train, or rlharness trace",
        )
    envelopes, _ = envelopes_of(invocation, {**arguments, "keep": (), "op_step": None})
    return StopPlan(envelopes[0], program_of(envelopes[0], invocation), conditions, reference)


def _of_run(run: RecordedRun, arguments: Mapping[str, Any]) -> Envelope:
    """Of a recorded run: as a whole, or of the one step that was named."""
    if arguments["step"] is not None:
        return plan_step(run, arguments).envelope
    refuse_options(arguments)
    return replace(run.envelope_to(0, free_overrides(run, arguments)), last_step=None)


def _check_names(conditions: tuple[Condition, ...], run: RecordedRun) -> None:
    """UsageError for values that the curve of a run has not, before it is run again."""
    if run.trace.curve:
        known = {name for point in run.trace.curve for name in point.values}
        refuse_unknown(unknown_names(conditions, known), known)


def _reference(invocation: Invocation, arguments: Mapping[str, Any]) -> Path | None:
    against = arguments["against"]
    return read_trace(place_of(invocation.cwd, against)).directory if against else None


async def _record(plan: StopPlan, out: OutDirectory, place: Place) -> Stopped:
    """The run; UsageError where its entry refuses it, or where a condition names what nothing is called."""
    report = out.path / STOP
    lines = RunLines()
    lines.title = f"a run until {' or '.join(map(str, plan.conditions))}"
    with open_session(place, lines) as session:
        run = await session.record(watched(plan.envelope, plan.conditions, report, plan.against), out.path)
        refuse(run, out)
        try:
            stop = read_report(report)
        except UsageError:
            out.give_back()
            raise
        lines.ended(run)
        return Stopped(plan, run, stop, out.path, interrupted_by=session.interrupted_by)


def _bundled(stopped: Stopped, path: Path, arguments: Mapping[str, Any]) -> Stopped:
    """The same with the bundle of the step in which it ended."""
    assert stopped.stop is not None
    if stopped.plan.envelope.call is None:
        return replace(
            stopped, notes=("a bundle holds a step of a scenario: a command has no checkpoints to begin from",)
        )
    step = stopped.stop.step
    run = read_recorded_run(stopped.run.recording.directory)
    try:
        write_bundle_of(run, step, path, refers_to_checkpoint=bool(arguments["reference_checkpoint"]))
    except BundleError as error:
        if arguments["bundle"]:
            raise
        return replace(stopped, notes=(f"there is no bundle: {one_line(error.what)}",))
    return replace(stopped, bundle=path)
