"""`rlharness run` and `rlharness plan` from arguments to exit code."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from harness.cli.commands.run_options import make_options
from harness.core.clock import Clock
from harness.core.errors import HarnessError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, terminal_columns
from harness.render.chart import chart, plan_json
from harness.render.console import say, show
from harness.render.github import flaky_annotations, is_on_github, say_lines
from harness.render.json_summary import summary_json
from harness.render.run_reporters import ReportOptions, make_reporters
from harness.render.sentences import shard_units
from harness.render.summary import REASON_OF_CODE
from harness.runner.events import plain
from harness.runner.options import RunOptions
from harness.runner.planning import Planned
from harness.runner.reporter import Guarded
from harness.runner.run import EndedRun, plan_tests, run_tests
from harness.runner.run_record import PAGE, RECORD
from harness.runner.unit_run import why_uncollected
from harness.runner.units import Outcome


def run_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness run`; raises HarnessError for a user error."""
    options = make_options(invocation, arguments)
    ended = run_with_reports(options)
    if isinstance(ended, str):
        return _interrupted(ended)
    if options.json:
        show(json.dumps(summary_json(ended.state, ended.finished)))
    if ended.state.outcomes[Outcome.FLAKY] and is_on_github(invocation.environ):
        say_lines(flaky_annotations(ended.state))
    raise_failure(ended)
    return ExitCode(ended.finished.exit_code)


def run_with_reports(options: RunOptions) -> EndedRun | str:
    """Run the tests and write the reports that the options ask for; the name of a signal that came before any test."""

    def reporters(directory: Path, clock: Clock) -> list[Guarded]:
        # The display goes to stdout, or to stderr where stdout is asked to be JSON.
        stream: TextIO = sys.stderr if options.json else sys.stdout
        wanted = ReportOptions(
            options.live,
            options.colour,
            record_file=directory / RECORD,
            events_file=options.events_file,
            junit_file=options.junit_file,
            page_file=directory / PAGE,
            html_file=options.html_file,
            trace_events_file=options.trace_events_file,
        )
        return make_reporters(wanted, stream=stream, clock=clock, say=say)

    return asyncio.run(run_tests(options, reporters))


def raise_failure(ended: EndedRun) -> None:
    """Raise the exception that ended the run, if one did."""
    if ended.failure is not None:
        if isinstance(ended.failure, HarnessError):
            ended.failure.in_record = True
        raise ended.failure


def plan_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness plan`: collect, pack, show."""
    options = make_options(invocation, arguments)
    found = asyncio.run(plan_tests(options))
    if isinstance(found, str):
        return _interrupted(found)
    planned, notes = found
    for note in notes:
        say(note)
    _show(planned, options, arguments.get("width"))
    return _code_of_plan(planned)


def _code_of_plan(planned: Planned) -> ExitCode:
    """Return the exit code that a run would have after this collection, and print the reason for a failure."""
    collected, shard = planned.collected, planned.shard
    if not all(unit.can_run for unit in collected.units):
        return ExitCode.TESTS_FAILED
    if (collected.units or (shard and shard.num_suite_units)) and not collected.not_found:
        return ExitCode.OK
    code = ExitCode.USAGE_ERROR if collected.not_found else ExitCode.NOTHING_COLLECTED
    say(f"exit code {code}: {REASON_OF_CODE[code]}")
    return code


def _interrupted(signal: str) -> ExitCode:
    say(f"interrupted by {signal} before any test ran")
    return ExitCode.INTERRUPTED


def _show(planned: Planned, options: RunOptions, width: int | None) -> None:
    """Print the plan; files that cannot be collected or name no test are listed as files that cannot run."""
    units, not_found = planned.collected.units, planned.collected.not_found
    broken = tuple(
        (n, f"cannot be collected: {why_uncollected(unit)}") for n, unit in enumerate(units) if not unit.can_run
    )
    broken += tuple((n, "; ".join(not_found[u.path].splitlines())) for n, u in enumerate(units) if u.path in not_found)
    never = tuple(
        (n, why + planned.table.who_keeps_it(planned.collected.asks.get(units[n].path, {})))
        for n, why in planned.plan.never
    )
    plan = replace(planned.plan, never=(*never, *broken))
    names, splits = [unit.path for unit in units], planned.collected.splits
    if options.json:
        found = plan_json(plan, names, planned.estimated, splits)
        show(json.dumps({**found, "shard": plain(planned.shard)}))
    else:
        if planned.shard is not None:
            show(f"shard {options.shard}: {shard_units(planned.shard, len(units))}\n")
        columns, estimates = width or terminal_columns(), planned.estimated
        text = chart(plan, names, width=columns, colour=options.colour, estimates=estimates, splits=splits)
        show(text.rstrip("\n"))
