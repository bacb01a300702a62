"""`rlharness chaos` from arguments to exit code."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.cli.commands.result import show_result
from harness.cli.commands.scenario_arguments import scenario_options
from harness.lab.chaos.search import Chaos, ChaosExecutor, ChaosOptions, PerturbationSearch, make_plan
from harness.lab.chaos.vary import Varied, VaryPlan, VarySearch, make_vary_plan
from harness.lab.experiments.launcher import LaunchContext, Launcher, run_experiment
from harness.lab.experiments.preparation import read_input
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.render.chaos import chaos_json, chaos_text, varied_json, varied_text
from harness.render.chaos_progress import ChaosLines, VaryLines
from harness.render.console import say

OF_FACTORS = ("count", "seed", "factors", "repeats", "only")
"""Options without --vary."""


def chaos_options(arguments: Mapping[str, Any]) -> ChaosOptions:
    """Return the options of a command line."""
    return ChaosOptions(
        scenario=arguments["scenario"],
        scenario_options=scenario_options(arguments),
        num_steps=arguments["steps"],
        of_factors={name: value for name in OF_FACTORS if (value := arguments[name]) not in (None, ())},
        vary=tuple(arguments["vary"]),
        has_bits=arguments["bits"],
        max_s=arguments["max_seconds"] or inf,
        timeout_s=arguments["timeout"] or inf,
        out=arguments["out"],
    )


def run_chaos(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness chaos`; raises HarnessError for a user error."""
    options = chaos_options(arguments)
    own_id, clock, given = new_run_id(SystemClock().wall()), SystemClock(), partial(read_input, 0, say)
    as_text: Callable[..., str] = varied_text if options.vary else chaos_text
    as_json: Callable[[Any], Any] = varied_json if options.vary else chaos_json
    plan = (make_vary_plan if options.vary else make_plan)(invocation, options, own_id, given)
    lines = VaryLines(plan) if isinstance(plan, VaryPlan) else ChaosLines(plan, clock)

    async def search(launcher: Launcher) -> Chaos | Varied:
        if isinstance(plan, VaryPlan):
            return await VarySearch(plan, launcher, invocation.environ, clock, lines).search()
        return await PerturbationSearch(plan, ChaosExecutor(plan, launcher, invocation.environ, clock, lines)).search()

    context = LaunchContext(invocation.cwd, invocation.environ, own_id, options.timeout_s, plan.stdin)
    found, interrupted_by = run_experiment(context, lines, search)
    found = replace(found, interrupted_by=interrupted_by)
    return show_result(found, invocation, as_text, as_json, color=arguments["color"], is_json=arguments["json"])
