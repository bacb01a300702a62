"""`rlharness transplant` from arguments to exit code.

A, B ─▶ plan ─▶ session: A again, B again, then A with something of B, one after another ─▶ table
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.session import open_session
from harness.lab.experiments.supervised_runs import Place
from harness.lab.reproduce.plan import check_machine, named_run
from harness.lab.transplant.executor import Bench
from harness.lab.transplant.findings import Findings
from harness.lab.transplant.plan import TransplantPlan, make_plan
from harness.process.run_directory import new_run_id
from harness.render.console import show
from harness.render.run_lines import RunLines
from harness.render.transplant import transplant_json, transplant_text

TRANSPLANTS = "transplants"


def run_transplant(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness transplant`; HarnessError for what the user can mend."""
    program = check_machine(invocation)
    a, b = (named_run(invocation, arguments[side], is_trusted=arguments["trust"]) for side in ("a", "b"))
    plan = make_plan(
        a, b, arguments["take"], step=arguments["step"], num_steps=arguments["steps"], is_once=arguments["only"]
    )
    own_id = new_run_id(SystemClock().wall())
    directory = out_directory(invocation.cwd, arguments["out"], TRANSPLANTS, own_id).path
    place = Place(program, invocation.cwd, invocation.environ, own_id)
    findings = asyncio.run(_carry_out(plan, directory, place))
    if arguments["json"]:
        show(json.dumps(transplant_json(findings)))
    else:
        show(transplant_text(findings, colour=wants_colour(arguments["color"], invocation)))
    return findings.exit_code


async def _carry_out(plan: TransplantPlan, directory: Path, place: Place) -> Findings:
    lines = RunLines()
    with open_session(place, lines) as session:
        return await Bench(plan.pair, session, directory, lines).search(plan.grafts)
