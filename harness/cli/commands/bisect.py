"""`rlharness bisect` from arguments to exit code."""

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.cli.commands.result import show_result
from harness.cli.commands.scenario_arguments import scenario_options
from harness.lab.bisect.bisection import BisectOptions, bisect, parse_criterion
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.render.bisect import bisection_json, bisection_text
from harness.render.run_lines import RunLines


def run_bisect(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness bisect`; raises HarnessError for a user error."""
    options = BisectOptions(
        scenario=arguments["scenario"],
        criterion=parse_criterion(arguments["by"], arguments["tolerance"]),
        good=arguments["good"],
        bad=arguments["bad"],
        packages=arguments["packages"],
        given=scenario_options(arguments),
        setup=arguments["setup"] or "",
        timeout_s=arguments["timeout"] or inf,
        out=arguments["out"],
    )
    found = asyncio.run(bisect(options, invocation, new_run_id(SystemClock().wall()), RunLines()))
    return show_result(
        found, invocation, bisection_text, bisection_json, color=arguments["color"], is_json=arguments["json"]
    )
