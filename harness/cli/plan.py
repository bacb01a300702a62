"""`rlharness plan`: show the schedule of a suite of tests."""

from dataclasses import replace
from typing import Any

import click

from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.cli.run import make_options, suite_options
from harness.process.invocation import Invocation
from harness.render.console import say, show


@click.command()
@suite_options
@click.pass_obj
def plan(invocation: Invocation, /, **given: Any) -> int:
    """Show the schedule that `run` would use.

    Includes the makespan of the schedule and a lower bound. Exits with 1 if a file cannot be collected, and with 0 if
    a file needs more GPUs than there are.
    """
    import asyncio

    from harness.render.plan_text import deselected_lines, plan_json, plan_text
    from harness.render.run_text import shard_units
    from harness.render.run_words import REASON_OF_CODE
    from harness.runner.events import plain
    from harness.runner.outcomes import why_uncollected
    from harness.runner.run import plan_tests

    options = make_options(invocation, given)
    found = asyncio.run(plan_tests(options))
    if isinstance(found, str):
        say(f"interrupted by {found} before any test ran")
        return ExitCode.INTERRUPTED
    planned, notes = found
    for note in notes:
        say(note)
    collected, shard = planned.collected, planned.shard
    units, not_found = collected.units, collected.not_found
    deselected = [result for result in collected.kept.values() if not result.resumed_from]
    never = [(n, why + planned.table.who_keeps_it(collected.asks_of(units[n]))) for n, why in planned.plan.never]
    never += [(n, f"cannot be collected: {why_uncollected(unit)}") for n, unit in enumerate(units) if not unit.can_run]
    never += [(n, "; ".join(not_found[u.path].splitlines())) for n, u in enumerate(units) if u.path in not_found]
    packed, names = replace(planned.plan, never=tuple(never)), [unit.path for unit in units]
    if options.json:
        shown = plan_json(packed, names, planned.estimated, collected.splits)
        paths = [result.unit.path for result in deselected]
        opt.show_json({**shown, "shard": plain(shard), "deselected": paths})
    else:
        if shard is not None:
            show(f"shard {options.shard}: {shard_units(shard, len(units))}\n")
        lines = plan_text(packed, names, planned.estimated, collected.splits)
        show("\n".join([*lines, *deselected_lines(deselected)]))
    if not all(unit.can_run for unit in units):
        return ExitCode.TESTS_FAILED
    is_empty_shard = not units and shard is not None and shard.num_suite_units > 0
    if (is_empty_shard or len(deselected) < len(units)) and not not_found:
        return ExitCode.OK
    code = ExitCode.USAGE_ERROR if not_found else ExitCode.NOTHING_COLLECTED
    say(f"exit code {code}: {REASON_OF_CODE[code]}")
    return code
