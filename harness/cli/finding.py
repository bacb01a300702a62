"""Commands that start runs to find something out: chaos, gate, bisect."""

from typing import Any

import click

from harness.cli.completion import complete_scenario
from harness.cli.options import (
    RECORDING_OPTIONS,
    SCENARIO_OPTIONS,
    Seconds,
    SomePath,
    all_of,
    color_option,
    trust_option,
)
from harness.core.invocation import Invocation


@click.command(
    epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file. Without one, everything after -- is"
    " the program:  rlharness chaos -- python train.py --seed 7"
)
@click.argument("scenario", required=False, shell_complete=complete_scenario)
@all_of(SCENARIO_OPTIONS)
@click.option("--count", type=click.IntRange(1), default=20, metavar="N", help="How many perturbations.  [default: 20]")
@click.option("--seed", type=click.IntRange(0), default=0, metavar="S", help="Which ones.  [default: 0]")
@click.option("--factors", metavar="NAME,NAME", help="Change these alone.  [default: all that there are]")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    metavar="R",
    help="Runs of one perturbation before it counts as harmless, while a cause is looked for.  [default: 3]",
)
@click.option(
    "--only", multiple=True, metavar="FACTOR=VALUE", help="Run this one perturbation; may be given several times."
)
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Run the first N steps.  [default: all]")
@click.option("--max-seconds", type=Seconds(0, min_open=True), metavar="S", help="Start no run after S seconds.")
@click.option(
    "--out", type=SomePath(), metavar="DIR", help="Where the traces go; new or empty.  [default: .rlharness/chaos]"
)
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def chaos(invocation: Invocation, /, **arguments: Any) -> int:
    """Change what must not matter, and find the smallest change that does; exits with 0, 10 or 12."""
    from harness.cli.commands.chaos import run_chaos

    return int(run_chaos(invocation, arguments))


@click.command(
    epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file; without one, those of"
    " [tool.rlharness.gate] in pyproject.toml, else all of the project."
)
@click.argument("scenarios", metavar="[SCENARIO]...", nargs=-1, shell_complete=complete_scenario)
@click.option("--base", metavar="REV", help="The revision to compare with.  [default: where this branch began]")
@click.option("--golden", type=SomePath(), metavar="DIR", help="Compare with the curves that are committed there.")
@click.option("--accept", is_flag=True, help="Write them anew, from what the working tree computes.")
@click.option("--reason", metavar="TEXT", help="Why they may change; kept beside them.")
@all_of(SCENARIO_OPTIONS)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="How many of each side.  [default: 2]")
@click.option(
    "--fail-on",
    metavar="REASON,...",
    help="behaviour, numerics, configuration, slowdown, memory, not_comparable; or none.  [default: all but"
    " configuration]",
)
@click.option(
    "--slowdown", type=click.FloatRange(1, min_open=True), metavar="X", help="Times as slow.  [default: 1.25]"
)
@click.option("--memory", type=click.FloatRange(1, min_open=True), metavar="X", help="As much memory.  [default: 1.25]")
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option(
    "--out", type=SomePath(), metavar="DIR", help="Where the traces go; new or empty.  [default: .rlharness/gates]"
)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def gate(invocation: Invocation, /, **arguments: Any) -> int:
    """Say what a change does to training runs, for CI: equal, numerics only, behaviour; exits with 0, 10, 11 or 12."""
    from harness.cli.commands.gate import carry_out_gate

    return int(carry_out_gate(invocation, arguments))


@click.command()
@click.argument("a", type=SomePath())
@click.argument("b", type=SomePath())
@click.option(
    "--take",
    multiple=True,
    metavar="WHAT",
    help="What of B is put into A: advantages, rewards, rollout, gradients, weights, PHASE, PHASE/NAME, op:N, or"
    " several joined by +; each that is given is tried by itself.  [default: each phase that differs]",
)
@click.option(
    "--step",
    type=click.IntRange(0),
    metavar="K",
    help="From which step on.  [default: the first in which what is taken differs]",
)
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Look at N steps.  [default: all that both have]")
@click.option("--only", is_flag=True, help="Put it in at step K alone.")
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Where the runs go; new or empty.  [default: .rlharness/transplants]",
)
@trust_option
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def transplant(invocation: Invocation, /, **arguments: Any) -> int:
    """Replay run A with something of run B, to see which difference caused the others; exits with 0, 10 or 11."""
    from harness.cli.commands.transplant import run_transplant

    return int(run_transplant(invocation, arguments))


@click.command(epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file, as it is now.")
@click.argument("scenario", shell_complete=complete_scenario)
@click.option("--good", metavar="REV", help="A revision that is as it should be.")
@click.option("--bad", metavar="REV", help="One that has come from it, and is not.")
@click.option("--packages", metavar="NAME==A..B", help="Look between two versions of a package instead.")
@click.option(
    "--by",
    default="bits",
    metavar="bits|reward|METRIC>X",
    help="What makes a run bad: other bits, another reward, a value of its curve.  [default: bits]",
)
@click.option(
    "--tolerance", type=click.FloatRange(0), metavar="X", help="Of --by reward: how far it may move.  [default: 0]"
)
@all_of(SCENARIO_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Where the traces go; new or empty.  [default: .rlharness/bisections]",
)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def bisect(invocation: Invocation, /, **arguments: Any) -> int:
    """Find the commit, or the version of a package, that first changed what a run computes; exits with 0, 11 or 12."""
    from harness.cli.commands.bisect import run_bisect

    return int(run_bisect(invocation, arguments))
