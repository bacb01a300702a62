"""`rlharness replay` from arguments to exit code: fresh processes, one run after another, each compared with the first.

plan ─▶ run 1, run 2, ... (with --trace-ops each once more, its operations recorded) ─▶ verdict ─▶ text or JSON
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from math import inf
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli.commands.scenario_arguments import scenario_options
from harness.lab.experiments.driver import run_experiment
from harness.lab.experiments.launcher import LaunchContext
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.program_input import read_input
from harness.lab.experiments.recorded_kind import find_recorded
from harness.lab.experiments.run import Run
from harness.lab.replay.comparison import Replay, compare_runs
from harness.lab.replay.options import ReplayOptions
from harness.lab.replay.plan import REPLAYS, kept_input, make_plan, plan_stop
from harness.lab.replay.replay import record_all
from harness.lab.replay.resumption import make_resume_plan, record_resumed
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation, terminal_columns, wants_colour
from harness.process.run_directory import new_run_id
from harness.render.console import say, show
from harness.render.curve_picture import is_ascii
from harness.render.replay import replay_json, replay_text, run_line
from harness.render.replay_progress import make_display
from harness.render.resumption import resume_json, resume_text, resumed_run_line


def replay_options(arguments: Mapping[str, Any]) -> ReplayOptions:
    """Return the options of a command line."""
    return ReplayOptions(
        scenario=arguments["scenario"],
        scenario_options=scenario_options(arguments),
        num_runs=arguments["runs"],
        against=arguments["against"],
        step=arguments["step"],
        has_operations=arguments["has_operations"],
        break_on=tuple(arguments["break_on"]),
        until=tuple(arguments["until"]),
        resume_at=arguments["resume_at"],
        resume_command=arguments["resume_command"],
        out=arguments["out"],
        timeout_s=arguments["timeout"] or inf,
    )


def run_replay(invocation: Invocation, arguments: Mapping[str, Any], reproduce_line: str) -> ExitCode:
    """Carry out `rlharness replay`; raises HarnessError for a user error.

    `reproduce_line` is the command to suggest if SCENARIO names a recorded run or a bundle.
    """
    options = replay_options(arguments)
    if options.scenario is not None:
        _refuse_recorded(invocation, options.scenario, reproduce_line)
    if options.resume_at is not None or options.resume_command is not None:
        return _compare_resumed(invocation, options, color=arguments["color"], is_json=arguments["json"])
    if options.has_condition:
        return _run_until(invocation, options, color=arguments["color"], is_json=arguments["json"])
    return _compare(invocation, options, color=arguments["color"], is_json=arguments["json"])


def _refuse_recorded(invocation: Invocation, name: str, reproduce_line: str) -> None:
    """Raise UsageError if the word names a recorded run or a bundle instead of a scenario."""
    kind = find_recorded(invocation.cwd, name)
    if kind is not None:
        raise UsageError(
            f"{name} is {kind.value}, but replay compares fresh runs",
            legal="the name of a scenario, a YAML file, or a command after --",
            remedy=reproduce_line,
        )


def _run_until(invocation: Invocation, options: ReplayOptions, *, color: str, is_json: bool) -> ExitCode:
    """Carry out one run of a scenario or a command until a condition holds."""
    from harness.cli.commands.run_until import run_until

    plan = plan_stop(invocation, options)
    own_id = new_run_id(SystemClock().wall())
    data = read_input(0, say) if plan.run_spec.call is None else b""
    out = out_directory(invocation.cwd, options.out, REPLAYS, own_id)
    stdin = kept_input(data, out.path)
    place = LaunchContext(plan.program, invocation.cwd, invocation.environ, own_id, options.timeout_s, stdin)
    return run_until(plan, out, place, invocation, color=color, is_json=is_json)


def _compare_resumed(invocation: Invocation, options: ReplayOptions, *, color: str, is_json: bool) -> ExitCode:
    """Compare a straight run with one that is interrupted and resumed."""
    replay_id = new_run_id(SystemClock().wall())
    resume = make_resume_plan(options, invocation.environ.get("PATH"))
    plan = make_plan(invocation, options, replay_id, lambda: read_input(0, say))
    place = LaunchContext(plan.program, invocation.cwd, invocation.environ, replay_id, plan.timeout_s, plan.stdin)
    display = make_display(
        2 + len(resume.steps), SystemClock(), colour=wants_colour(color, invocation), environ=invocation.environ
    )
    with closing(display):
        ended: Callable[[Run], None] = lambda run: display.end(resumed_run_line(run, resume))  # noqa: E731
        record = partial(record_resumed, plan, resume, invocation=invocation, ended=ended)
        verdict, _ = run_experiment(place, display, record)
    show(json.dumps(resume_json(verdict, plan)) if is_json else resume_text(verdict, plan))
    return verdict.exit_code


def _compare(invocation: Invocation, options: ReplayOptions, *, color: str, is_json: bool) -> ExitCode:
    """Compare runs of a scenario or a command with each other, or with a recorded trace."""
    replay = record_and_compare(invocation, options, color=color)
    if is_json:
        show(json.dumps(replay_json(replay)))
    else:
        show_replay(replay, invocation, color=color)
    return replay.exit_code


def record_and_compare(invocation: Invocation, options: ReplayOptions, *, color: str) -> Replay:
    """Carry out the runs, with their progress on standard error, and compare them."""
    clock = SystemClock()
    replay_id = new_run_id(clock.wall())
    plan = make_plan(invocation, options, replay_id, lambda: read_input(0, say))
    place = LaunchContext(plan.program, invocation.cwd, invocation.environ, replay_id, plan.timeout_s, plan.stdin)
    colour = wants_colour(color, invocation)
    display = make_display(plan.num_runs, clock, colour=colour, environ=invocation.environ)

    def show_end(run: Run) -> None:
        display.end(run_line(run))

    with closing(display):
        runs, interrupted_by = run_experiment(place, display, partial(record_all, plan, ended=show_end))
    return compare_runs(plan, runs, interrupted_by)


def show_replay(replay: Replay, invocation: Invocation, *, color: str) -> None:
    """Print the result as text."""
    colour = wants_colour(color, invocation)
    show(replay_text(replay, colour=colour, width=terminal_columns(), is_ascii=is_ascii(invocation)))
