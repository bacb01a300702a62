"""`rlharness reproduce` from arguments to exit code.

RUN, K ─▶ plan ─▶ K again (with --trace-ops once more, operations recorded) ─▶ is it what it was? ─▶ text, JSON, bundle
--against OTHER ─▶ the same step of the other run ─▶ the first operation that differs between the two
without --step  ─▶ the whole run again ─▶ is it what it was? --against OTHER ─▶ all its steps, and the trace in OTHER
BUNDLE ─▶ unpacked: a recorded run of one step ─▶ the same
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli.commands.result import show_result
from harness.lab.experiments.bundle import bundle_place
from harness.lab.experiments.launcher import LaunchContext, check_program
from harness.lab.experiments.preparation import out_directory, place_of
from harness.lab.experiments.recorded_kind import RecordedKind, recorded_kind
from harness.lab.experiments.scenario import check_entries
from harness.lab.reproduce.reproduction import (
    REPRODUCTIONS,
    UNPACKED,
    ReproduceOptions,
    Reproduction,
    check_options,
    check_trace,
    named_run,
    notes_on,
    plan_step,
    plan_stop,
    reproduce,
    trusted_bundle,
    unpacked,
    with_bundle,
)
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.render.replay import step_json, step_text
from harness.render.run_lines import RunLines
from harness.trace.reader import read_trace


def reproduce_options(arguments: Mapping[str, Any]) -> ReproduceOptions:
    """Return the options of a command line."""
    return ReproduceOptions(
        subject=arguments["subject"],
        step=arguments["step"],
        has_operations=arguments["has_operations"],
        is_interactive=arguments["interactive"],
        commands=arguments["commands"],
        against=arguments["against"],
        bundle=arguments["bundle"],
        refers_to_checkpoint=arguments["reference_checkpoint"],
        break_on=tuple(arguments["break_on"]),
        until=tuple(arguments["until"]),
        is_trusted=arguments["trust"],
        overrides=tuple(arguments["overrides"]),
        out=arguments["out"],
        timeout_s=arguments["timeout"] or inf,
    )


def run_reproduce(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness reproduce`; raises HarnessError for a user error."""
    options = reproduce_options(arguments)
    color, is_json = arguments["color"], arguments["json"]
    kind = recorded_kind(invocation.cwd, options.subject)
    check_options(options, kind)
    if options.is_interactive:
        from harness.cli.commands.debug import run_interactive

        return run_interactive(invocation, options, color=color, is_json=is_json)
    if options.has_condition:
        return _run_until(invocation, options, color=color, is_json=is_json)
    found = _of_bundle(invocation, options) if kind is RecordedKind.BUNDLE else _of_run(invocation, options)
    return show_result(found, invocation, step_text, step_json, color=color, is_json=is_json)


def _of_run(invocation: Invocation, options: ReproduceOptions) -> Reproduction:
    """Repeat a recorded run, or one of its steps."""
    run = named_run(invocation, options.subject, is_trusted=options.is_trusted)
    if run.call is None and options.bundle:
        raise UsageError(
            "--bundle for the run of a command",
            legal="a run of a scenario, which has checkpoints to begin from",
            remedy="a trace is data: send its directory, and reproduce it there with -- COMMAND",
        )
    plan = plan_step(run, options.step, options)
    check_program(plan.run_spec, invocation.cwd, invocation.environ)
    other_trace, other_plan = None, None
    if options.against and options.step is None:
        other_trace = read_trace(place_of(invocation.cwd, options.against))
    elif options.against:
        other = named_run(invocation, options.against, is_trusted=options.is_trusted, is_other=True)
        other_plan = plan_step(other, plan.step, options)
    bundle = bundle_place(invocation.cwd, options.bundle) if options.bundle else None
    own_id = new_run_id(SystemClock().wall())
    out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, own_id)
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, plan.timeout_s)
    found = asyncio.run(reproduce(plan, other_plan, out, place, RunLines()))
    found = replace(found, notes=tuple(f"skipped a damaged checkpoint: {each}" for each in plan.passed_over))
    if other_trace is not None and not found.interrupted_by:
        found = replace(found, other_trace=check_trace(found.repeated, other_trace))
    if bundle is not None and found.repeated.runs and not found.interrupted_by:
        found = with_bundle(found, bundle, refers_to_checkpoint=options.refers_to_checkpoint)
    return found


def _of_bundle(invocation: Invocation, options: ReproduceOptions) -> Reproduction:
    """Repeat the step of a bundle."""
    if invocation.trailing:
        raise UsageError(
            "a bundle and a command", legal="a bundle, which holds its run", remedy="omit everything after --"
        )
    check_entries(invocation)
    bundle = trusted_bundle(invocation, options.subject, is_trusted=options.is_trusted)
    own_id = new_run_id(SystemClock().wall())
    out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, own_id)
    try:
        run = unpacked(bundle, out.path / UNPACKED)
        plan = plan_step(run, bundle.head.step, options)
    except HarnessError:
        out.give_back()
        raise
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, plan.timeout_s)
    found = asyncio.run(reproduce(plan, None, out, place, RunLines()))
    return replace(found, notes=tuple(notes_on(run, found.repeated)))


def _run_until(invocation: Invocation, options: ReproduceOptions, *, color: str, is_json: bool) -> ExitCode:
    """Repeat a recorded run, or one of its steps, until a condition holds."""
    from harness.cli.commands.run_until import run_until

    run = named_run(invocation, options.subject, is_trusted=options.is_trusted)
    plan = plan_stop(run, invocation, options)
    bundle = bundle_place(invocation.cwd, options.bundle) if options.bundle else None
    own_id = new_run_id(SystemClock().wall())
    out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, own_id)
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, options.timeout_s)
    return run_until(
        plan,
        out,
        place,
        invocation,
        color=color,
        is_json=is_json,
        bundle=bundle,
        refers_to_checkpoint=options.refers_to_checkpoint,
    )
