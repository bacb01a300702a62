"""`rlharness replay` from arguments to exit code: fresh processes, one run after another, each compared with the first.

plan ─▶ run 1, run 2, ... (with --trace-ops each once more, its operations recorded) ─▶ verdict ─▶ text or JSON
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from math import inf
from typing import Any, TypeVar

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli.commands.result import show_result
from harness.cli.commands.scenario_arguments import scenario_options
from harness.lab.experiments.launcher import LaunchContext, Launcher, Run, record_variants, run_experiment
from harness.lab.experiments.preparation import keep_input, out_directory, read_input
from harness.lab.experiments.recorded_kind import find_recorded
from harness.lab.replay.replay import REPLAYS, Replay, ReplayOptions, ReplayPlan, compare_runs, make_plan, plan_stop
from harness.lab.replay.resumption import make_resume_plan, record_resumed
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.render.console import say
from harness.render.replay import replay_json, replay_text, resume_json, resume_text, resumed_run_line
from harness.render.run_lines import RunLines, run_line

T = TypeVar("T")


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
    replay = record_and_compare(invocation, options)
    return show_replay(replay, invocation, color=arguments["color"], is_json=arguments["json"])


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
    stdin = keep_input(data, out.path)
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, options.timeout_s, stdin)
    return run_until(plan, out, place, invocation, color=color, is_json=is_json)


def _compare_resumed(invocation: Invocation, options: ReplayOptions, *, color: str, is_json: bool) -> ExitCode:
    """Compare a straight run with one that is interrupted and resumed."""
    resume = make_resume_plan(options, invocation)
    record = partial(record_resumed, resume, invocation)
    plan, verdict, _ = _record(invocation, options, record, num_resumes=len(resume.steps))
    return show_result(
        verdict, invocation, partial(resume_text, plan), partial(resume_json, plan), color=color, is_json=is_json
    )


def record_and_compare(invocation: Invocation, options: ReplayOptions) -> Replay:
    """Carry out the runs, with their progress on standard error, and compare them."""

    async def record(plan: ReplayPlan, launcher: Launcher, *, ended: Callable[[Run], None]) -> list[Run]:
        return await record_variants(
            launcher, plan.runs(), plan.out, ended=ended, is_useless=lambda run: not run.recording.num_steps
        )

    plan, runs, interrupted_by = _record(invocation, options, record)
    return compare_runs(plan, runs, interrupted_by)


def _record(
    invocation: Invocation,
    options: ReplayOptions,
    record: Callable[..., Awaitable[T]],
    *,
    num_resumes: int | None = None,
) -> tuple[ReplayPlan, T, str]:
    """(the plan, what the runs give, the signal that ended them early), with a line about each run."""
    clock = SystemClock()
    own_id = new_run_id(clock.wall())
    plan = make_plan(invocation, options, own_id, lambda: read_input(0, say))
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, plan.timeout_s, plan.stdin)
    num_runs = plan.num_runs if num_resumes is None else 2 + num_resumes
    display = RunLines(num_runs)

    def ended(run: Run, kind: str = "") -> None:
        display.end(resumed_run_line(run, kind) if kind else run_line(run))

    with closing(display):
        return plan, *run_experiment(place, display, partial(record, plan, ended=ended))


def show_replay(replay: Replay, invocation: Invocation, *, color: str, is_json: bool = False) -> ExitCode:
    """Print the result, and return its exit code."""
    return show_result(replay, invocation, replay_text, replay_json, color=color, is_json=is_json)
