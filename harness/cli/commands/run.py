"""`rlharness run` and `rlharness plan` from arguments to exit code."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from harness.bits.errors import HarnessError
from harness.bits.exit_codes import ExitCode
from harness.cli.commands.run_options import make_options
from harness.process.clock import Clock
from harness.process.invocation import Invocation, terminal_columns
from harness.render.chart import chart, deselected_lines, plan_json
from harness.render.console import is_outermost_on_github, say, show
from harness.render.run_json import summary_json
from harness.render.run_reporters import make_reporters
from harness.render.run_text import shard_units
from harness.render.run_words import REASON_OF_CODE
from harness.runner.attempts.unit_result import why_uncollected
from harness.runner.events import plain
from harness.runner.options import RunOptions
from harness.runner.planning import Planned
from harness.runner.reporter import Guarded
from harness.runner.run import EndedRun, plan_tests, run_tests
from harness.runner.units import UnitResult


def run_suite(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness run`; raises HarnessError for a user error."""
    options = make_options(invocation, arguments)
    ended = run_with_reports(options, on_github=is_outermost_on_github(invocation.environ))
    if isinstance(ended, str):
        return _interrupted(ended)
    if options.json:
        show(json.dumps(summary_json(ended.state, ended.finished)))
    raise_failure(ended)
    return ExitCode(ended.finished.exit_code)


def run_with_reports(options: RunOptions, *, on_github: bool = False) -> EndedRun | str:
    """Run the tests and write the reports that the options ask for; the name of a signal that came before any test.

    With `on_github`, the reports include those of a job of GitHub Actions.
    """

    def reporters(directory: Path, clock: Clock) -> list[Guarded]:
        # The display goes to stdout, or to stderr where stdout is asked to be JSON.
        stream: TextIO = sys.stderr if options.json else sys.stdout
        return make_reporters(options, directory, clock, stream, say, on_github=on_github)

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
    is_empty_shard = not collected.units and shard is not None and shard.num_suite_units > 0
    if (is_empty_shard or len(_deselected(planned)) < len(collected.units)) and not collected.not_found:
        return ExitCode.OK
    code = ExitCode.USAGE_ERROR if collected.not_found else ExitCode.NOTHING_COLLECTED
    say(f"exit code {code}: {REASON_OF_CODE[code]}")
    return code


def _deselected(planned: Planned) -> list[UnitResult]:
    return [result for result in planned.collected.kept.values() if not result.resumed_from]


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
        deselected = [result.unit.path for result in _deselected(planned)]
        show(json.dumps({**found, "shard": plain(planned.shard), "deselected": deselected}))
    else:
        if planned.shard is not None:
            show(f"shard {options.shard}: {shard_units(planned.shard, len(units))}\n")
        columns, estimates = width or terminal_columns(), planned.estimated
        text = chart(plan, names, width=columns, colour=options.colour, estimates=estimates, splits=splits)
        show("\n".join((text.rstrip("\n"), *deselected_lines(_deselected(planned)))))
