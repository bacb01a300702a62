"""One run that ends where a condition holds, as `replay` and `reproduce` carry it out.

plan ─▶ run ─▶ bundle ─▶ text or JSON, exit code
"""

import asyncio
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.cli.commands.result import show_result
from harness.lab.experiments.launcher import LaunchContext
from harness.lab.experiments.preparation import OutDirectory
from harness.lab.experiments.single_run import StopPlan, record_until, with_bundle
from harness.process.invocation import Invocation
from harness.render.replay import stopped_json, stopped_text
from harness.render.run_lines import RunLines


def run_until(
    plan: StopPlan,
    out: OutDirectory,
    place: LaunchContext,
    invocation: Invocation,
    *,
    color: str,
    is_json: bool,
    bundle: Path | None = None,
    refers_to_checkpoint: bool = False,
) -> ExitCode:
    """Carry out the run, write its bundle, and print where it has ended; raises HarnessError for a user error."""
    stopped = asyncio.run(record_until(plan, out, place, RunLines()))
    stopped = with_bundle(stopped, bundle, refers_to_checkpoint=refers_to_checkpoint)
    return show_result(stopped, invocation, stopped_text, stopped_json, color=color, is_json=is_json)
