"""`rlharness replay RUN --step K` from arguments to exit code.

RUN, K ─▶ plan ─▶ K again (with --op once more, its operations recorded) ─▶ is it what it was? ─▶ text, JSON, bundle
--against OTHER ─▶ the same step of the other run ─▶ the first operation that differs between the two
without --step  ─▶ the whole run again ─▶ is it what it was? --against OTHER ─▶ all its steps, and the trace in OTHER
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.core.clock import SystemClock
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.lab.experiments.bundles.making import bundle_place
from harness.lab.experiments.out_directory import OutDirectory, out_directory, place_of
from harness.lab.experiments.session import Session, open_session, refuse
from harness.lab.experiments.supervised_runs import Place, Run
from harness.lab.replay.plan import REPLAYS
from harness.lab.reproduce.comparison import judge_other, judge_step, judge_trace
from harness.lab.reproduce.plan import StepPlan, check_machine, named_run, plan_step
from harness.lab.reproduce.result import StepReplay, bundle_of_replay
from harness.process.run_directory import new_run_id
from harness.render.console import show
from harness.render.run_lines import RunLines
from harness.render.steps import step_json, step_text
from harness.trace.reader import read_trace


def run_step_replay(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness replay RUN`; HarnessError for what the user can mend."""
    program = check_machine(invocation)
    plan = plan_step(named_run(invocation, arguments, arguments["scenario"]), arguments)
    other = arguments["against"]
    is_whole = arguments["step"] is None
    other_trace = read_trace(place_of(invocation.cwd, other)) if other and is_whole else None
    other_plan = (
        plan_step(named_run(invocation, arguments, other), arguments, plan.step) if other and not is_whole else None
    )
    bundle = bundle_place(invocation.cwd, arguments["bundle"]) if arguments["bundle"] else None
    own_id = new_run_id(SystemClock().wall())
    out = out_directory(invocation.cwd, arguments["out"], REPLAYS, own_id)
    place = Place(program, invocation.cwd, invocation.environ, own_id, plan.timeout_s)
    replay = replay_steps(plan, other_plan, out, place)
    replay = replace(replay, notes=tuple(f"a damaged checkpoint is passed over: {each}" for each in plan.passed_over))
    if other_trace is not None and not replay.interrupted_by:
        replay = replace(replay, other_trace=judge_trace(replay.repeated, other_trace))
    if bundle is not None and replay.repeated.runs and not replay.interrupted_by:
        replay = bundle_of_replay(replay, bundle, arguments)
    return tell(replay, invocation, arguments)


def replay_steps(plan: StepPlan, other: StepPlan | None, out: OutDirectory, place: Place) -> StepReplay:
    """Run the step again, and that of the other run; in `out`."""
    return asyncio.run(_carry_out(plan, other, out, place))


def tell(replay: StepReplay, invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Print what was found; the exit code."""
    if arguments["json"]:
        show(json.dumps(step_json(replay)))
    else:
        show(step_text(replay, colour=wants_colour(arguments["color"], invocation)))
    return replay.exit_code


async def _carry_out(plan: StepPlan, other: StepPlan | None, out: OutDirectory, place: Place) -> StepReplay:
    lines = RunLines()
    with open_session(place, lines) as session:
        runs = await _record(plan, session, out, 1, lines)
        is_set_against = other is not None and not session.interrupted_by and bool(runs[0].recording.ranks)
        others = await _record(other, session, out, 2, lines) if other and is_set_against else []
        interrupted_by = session.interrupted_by
    repeated = judge_step(plan, runs)
    against = None if other is None or not others else judge_other(repeated, judge_step(other, others))
    return StepReplay(repeated, out.path, against, interrupted_by=interrupted_by)


async def _record(plan: StepPlan, session: Session, out: OutDirectory, number: int, lines: RunLines) -> list[Run]:
    """The run of a plan, and the one with operations; UsageError where its entry refuses it before its first step."""
    whose = "" if number == 1 else " of the other run"
    steps = f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"
    envelopes = [plan.envelope, *([plan.with_operations] if plan.has_operations else [])]
    runs: list[Run] = []
    for envelope in envelopes:
        lines.title = f"{steps}{whose} again" + ("" if envelope.op_step is None else ", with operations")
        run = await session.record(envelope, out.path, number)
        refuse(run, out)
        lines.ended(run)
        runs.append(run)
        if session.interrupted_by or not run.recording.ranks:
            break
    return runs
