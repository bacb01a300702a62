"""`rlharness replay` from arguments to exit code: fresh processes, one run after another, each compared with the first.

plan ─▶ run 1, run 2, ... (with --op each once more, its operations recorded) ─▶ judgement ─▶ text or JSON
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import UsageError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, terminal_columns, wants_colour
from harness.lab.experiments.program_input import read_input
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.session import open_session, refuse
from harness.lab.experiments.supervised_runs import Display, Place, Run
from harness.lab.replay.comparison import judge
from harness.lab.replay.plan import ReplayPlan, make_plan
from harness.lab.reproduce.plan import names_recorded_run, refuse_directory
from harness.process.run_directory import new_run_id
from harness.render.console import say, show
from harness.render.curve_picture import is_ascii
from harness.render.replay import replay_json, replay_text, run_line
from harness.render.replay_progress import make_display


def run_replay(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness replay`; HarnessError for what the user can mend."""
    refuse_directory(invocation.cwd, arguments["scenario"])
    has_condition = bool(arguments["break_on"] or arguments["until"])
    if arguments["reference_checkpoint"] and not (arguments["bundle"] or arguments["interactive"] or has_condition):
        raise UsageError(
            "--reference-checkpoint without a bundle",
            legal="--bundle FILE --reference-checkpoint",
            remedy="name the bundle that shall be written, or leave it out",
        )
    if arguments["interactive"] or arguments["commands"]:
        from harness.cli.commands.debug import run_interactive

        return run_interactive(invocation, arguments)
    if has_condition:
        from harness.cli.commands.run_until import run_until

        return run_until(invocation, arguments)
    if names_recorded_run(invocation.cwd, arguments["scenario"]):
        from harness.cli.commands.reproduce import run_step_replay

        return run_step_replay(invocation, arguments)
    if arguments["bundle"]:
        from harness.cli.commands.bundle import run_bundle_replay

        return run_bundle_replay(invocation, arguments)
    return run_comparison(invocation, arguments)


def run_comparison(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Runs of a scenario or of a command, compared with each other or with one that was kept."""
    clock = SystemClock()
    replay_id = new_run_id(clock.wall())
    plan = make_plan(invocation, arguments, replay_id, lambda: read_input(0, say))
    place = Place(plan.program, invocation.cwd, invocation.environ, replay_id, plan.timeout_s, plan.stdin)
    colour = wants_colour(arguments["color"], invocation)
    display = make_display(plan.num_runs, clock, colour=colour, environ=invocation.environ)
    with closing(display):
        runs, interrupted_by = asyncio.run(_record_all(plan, place, display))
    replay = judge(plan, runs, interrupted_by)
    if arguments["json"]:
        show(json.dumps(replay_json(replay)))
    else:
        show(replay_text(replay, colour=colour, width=terminal_columns(), is_ascii=is_ascii(invocation)))
    return replay.exit_code


async def _record_all(plan: ReplayPlan, place: Place, display: Display) -> tuple[tuple[Run, ...], str]:
    """Every run that the plan wants, until one has recorded nothing; and the signal that ended them early."""
    runs: list[Run] = []
    with open_session(place, display) as session:
        for number, envelope in _wanted(plan):
            run = await session.record(envelope, plan.directory, number)
            refuse(run, plan.out)
            runs.append(run)
            display.end(run_line(run))
            if session.interrupted_by or not run.recording.num_steps:
                break
        return tuple(runs), session.interrupted_by


def _wanted(plan: ReplayPlan) -> Iterator[tuple[int, Envelope]]:
    """(number, envelope) of each run, in the order in which they are started."""
    for number in range(1, plan.num_runs + 1):
        envelope = plan.envelope_of(number)
        yield number, envelope
        if plan.op_step is not None:
            yield number, replace(envelope, op_step=plan.op_step)
