"""`rlharness gate` from arguments to exit code: options, the gate, text or JSON, GitHub."""

import asyncio
from collections.abc import Mapping
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.cli.commands.gate_options import gate_options
from harness.cli.commands.result import show_result
from harness.lab.experiments.launcher import LaunchContext
from harness.lab.experiments.worktrees import Checkout
from harness.lab.gate.gate import run_gate
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation
from harness.process.run_directory import new_run_id
from harness.render.console import is_on_github
from harness.render.gate import gate_json, gate_text
from harness.render.gate_github import annotate, append_summary
from harness.render.run_lines import RunLines


def carry_out_gate(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness gate`; raises HarnessError for a user error."""
    clock = SystemClock()
    options = gate_options(invocation, arguments)
    checkout = Checkout(invocation.cwd, invocation.environ)
    gate_id = new_run_id(clock.wall())
    place = LaunchContext(invocation.cwd, invocation.environ, gate_id, options.timeout_s)
    gate = asyncio.run(run_gate(options, checkout, place, out=arguments["out"], lines=RunLines(), clock=clock))
    show_result(gate, invocation, gate_text, gate_json, color=arguments["color"], is_json=arguments["json"])
    if is_on_github(invocation.environ):
        annotate(gate)
        append_summary(gate, invocation.environ)
    return gate.exit_code
