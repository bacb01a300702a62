"""`rlharness gate`: classify the effect of a code change on training runs."""

from math import inf
from typing import TYPE_CHECKING, Any

import click

from harness.bits.errors import UsageError
from harness.bits.redaction import redact_text
from harness.cli import options as opt
from harness.process.invocation import Invocation

if TYPE_CHECKING:
    from harness.lab.gate.gate import GateOptions

DEFAULT_RUNS = 2


@click.command(
    epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file. Default: the scenarios of"
    " [tool.rlharness.gate] in pyproject.toml, else all scenarios of the project. After --, a command of any program:"
    "  rlharness gate --base main -- python train.py"
)
@click.argument("names", metavar="[SCENARIO]...", nargs=-1)
@opt.option("--base REV", "Revision to compare with.  [default: where this branch began, else the parent]", default="")
@opt.option("--golden DIR", "Compare with goldens: curves of earlier runs, committed in DIR.", opt.PATH)
@opt.option("--accept accepts", "Replace the goldens by runs of the working tree; needs --golden and --reason.")
@opt.option("--reason TEXT", "Why the goldens may change; stored with them.", default="")
@opt.scenario
@opt.option("--runs N", "Runs of each revision; at least 2 with --golden.  [default: 2]", opt.COUNT)
@opt.option("--fail-on REASON,...", "What fails: behaviour, numerics, configuration, not_comparable; or none.")
@opt.setup
@opt.experiment("gates", limit_s=None)
@opt.output
def gate(invocation: Invocation, output: opt.Output, /, *, out: str | None, **given: Any) -> int:
    """Classify the effect of a code change on training runs.

    A gate for CI: a run is equal, differs in numerics only, or differs in behaviour. Exits with 0 if the gate passes,
    10 if a change fails it, 11 if runs are not comparable, or 12 if a run fails.
    """
    import asyncio

    from harness.lab.experiment.launcher import LaunchContext
    from harness.lab.experiment.worktrees import Checkout
    from harness.lab.gate.gate import run_gate
    from harness.process.clock import SystemClock
    from harness.render.console import is_on_github
    from harness.render.gate import annotate, append_summary, gate_json, gate_text
    from harness.render.run_lines import RunLines

    clock = SystemClock()
    options = gate_options(invocation, given)
    checkout = Checkout(invocation.cwd, invocation.environ)
    place = LaunchContext(invocation.cwd, invocation.environ, opt.new_id(), options.timeout_s)
    found = asyncio.run(run_gate(options, checkout, place, out=out, lines=RunLines(), clock=clock))
    output.show(found, gate_text, gate_json)
    if is_on_github(invocation.environ):
        annotate(found)
        append_summary(found, invocation.environ)
    return found.exit_code


def gate_options(invocation: Invocation, given: dict[str, Any]) -> "GateOptions":
    """Return the command line over [tool.rlharness.gate] over the defaults; UsageError if they exclude each other."""
    from dataclasses import replace

    from harness.lab.experiment.preparation import place_of
    from harness.lab.gate.gate import LEAST_AGREEING, GateOptions, policy_of
    from harness.runner.config import load_config

    config = load_config(invocation.cwd)
    keys = config.gate
    golden = given.pop("golden")
    if golden is not None:
        golden = place_of(invocation.cwd, golden)
    elif keys.golden:
        golden = (config.path.parent if config.path else invocation.cwd) / keys.golden
    reason = given.pop("reason").strip()
    if given["accepts"] and not golden:
        raise UsageError("--accept without goldens", legal="--golden DIR --accept")
    if given["accepts"] != bool(reason):
        what = "--accept without a reason" if given["accepts"] else "--reason without --accept"
        raise UsageError(what, legal="--accept --reason TEXT, which the gate stores with the goldens")
    runs = given.pop("runs") or keys.runs or DEFAULT_RUNS
    if golden is not None and runs < LEAST_AGREEING:
        invocation.note(
            f"note: {LEAST_AGREEING} runs of the working tree are made, not {runs}: goldens need two runs that agree"
        )
    scenario = opt.take_options(given)
    if not invocation.trailing:
        scenario = replace(scenario, size=scenario.size or keys.size)
    typed = given.pop("fail_on")
    fail_on = policy_of(typed, keys, f"{config.path}: [tool.rlharness.gate] fail-on")
    timeout_s = given.pop("timeout_s")
    return GateOptions(
        invocation=invocation,
        golden=golden,
        reason=redact_text(reason),  # it is committed with the goldens
        given=scenario,
        runs=runs,
        fail_on=fail_on,
        timeout_s=keys.timeout_s or inf if timeout_s is None else timeout_s,
        typed=typed,
        **given,
    )
