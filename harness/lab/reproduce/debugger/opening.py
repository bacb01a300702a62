"""The step at which the debugger opens, from what was asked for: checked before anything is started."""

from harness.bits.errors import UsageError
from harness.bits.text import path_text
from harness.lab.experiments.out_directory import out_directory
from harness.lab.reproduce.debugger.console import StepDebugger
from harness.lab.reproduce.options import ReproduceOptions
from harness.lab.reproduce.plan import REPRODUCTIONS, free_overrides, named_run
from harness.process.invocation import Invocation


def open_debugger(invocation: Invocation, options: ReproduceOptions, run_id: str) -> StepDebugger:
    """Return the requested step, and make its directory; UsageError if the debugger cannot pause at it."""
    assert options.step is not None
    step, other = options.step, options.against
    run = named_run(invocation, options.subject, is_trusted=options.is_trusted)
    against = named_run(invocation, other, is_trusted=options.is_trusted) if other else None
    after = max(run.trace.steps, default=-1) + 1
    if step > after:  # the one after the last is legal: the run may have ended in it
        raise UsageError(
            f"--step {step}: {path_text(run.directory)} has none",
            legal=f"0 to {after}, the one after its last included",
            remedy=f"--step {after} opens the step in which the run ended",
        )
    overrides = free_overrides(run, options.overrides)
    out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, run_id)
    return StepDebugger(run, step, out, against, overrides=overrides, **({"whose": other} if other else {}))
