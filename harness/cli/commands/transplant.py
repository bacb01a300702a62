"""`rlharness transplant` from arguments to exit code.

A, B ─▶ plan ─▶ session: A again, B again, then A with something of B, one after another ─▶ table
"""

from collections.abc import Mapping
from typing import Any

from harness.cli.commands.result import show_result
from harness.core.clock import SystemClock
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation
from harness.lab.experiments.driver import run_experiment
from harness.lab.experiments.launcher import LaunchContext, Launcher
from harness.lab.experiments.out_directory import out_directory
from harness.lab.reproduce.plan import check_machine, named_run
from harness.lab.transplant.executor import TransplantExecutor
from harness.lab.transplant.findings import Findings
from harness.lab.transplant.plan import make_plan
from harness.process.run_directory import new_run_id
from harness.render.run_lines import RunLines
from harness.render.transplant import transplant_json, transplant_text

TRANSPLANTS = "transplants"


def run_transplant(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness transplant`; raises HarnessError for a user error."""
    program = check_machine(invocation)
    a, b = (named_run(invocation, arguments[side], is_trusted=arguments["trust"]) for side in ("a", "b"))
    plan = make_plan(
        a, b, arguments["take"], step=arguments["step"], num_steps=arguments["steps"], is_once=arguments["only"]
    )
    own_id = new_run_id(SystemClock().wall())
    directory = out_directory(invocation.cwd, arguments["out"], TRANSPLANTS, own_id).path
    place = LaunchContext(program, invocation.cwd, invocation.environ, own_id)
    lines = RunLines()

    async def search(launcher: Launcher) -> Findings:
        return await TransplantExecutor(plan.pair, launcher, directory, lines).search(plan.patches)

    found, _ = run_experiment(place, lines, search)
    return show_result(
        found, invocation, transplant_text, transplant_json, color=arguments["color"], is_json=arguments["json"]
    )
