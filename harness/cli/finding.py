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
)
from harness.process.invocation import Invocation


@click.command(
    epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file. Without it, everything after -- is"
    " the program:  rlharness chaos --vary G=1,4 -- python train.py --accum {G}"
)
@click.argument("scenario", required=False, shell_complete=complete_scenario)
@all_of(SCENARIO_OPTIONS)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Number of perturbations to try.  [default: 20]")
@click.option("--seed", type=click.IntRange(0), metavar="S", help="Seed for drawing perturbations.  [default: 0]")
@click.option(
    "--factors",
    metavar="NAME,NAME",
    help="Perturb only these factors, such as threads, hash_seed, or a runtime setting.  [default: all]",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    metavar="R",
    help="While searching for the cause: how often a perturbation must run without a difference to count as harmless."
    "  [default: 3]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="FACTOR=VALUE",
    help="Run only this perturbation, e.g. threads=2. Repeat it to combine factors.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="For a scenario, and with --vary: run only the first N steps.  [default: all]",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=BASE,OTHER",
    help="For a command: a setting that should change nothing beyond rounding. Each value replaces {NAME} in the"
    " command. Repeatable.",
)
@click.option("--bits", is_flag=True, help="With --vary: fail if a value changes any bit.")
@click.option("--max-seconds", type=Seconds(0, min_open=True), metavar="S", help="Start no new run after S seconds.")
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Directory for the traces; must be new or empty.  [default: .rlharness/chaos]",
)
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Time limit per run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def chaos(invocation: Invocation, /, **arguments: Any) -> int:
    """Perturb settings that should not affect results.

    Minimizes any perturbation that does affect them. Exits with 0 if no perturbation changes a bit, 10 if one does,
    or 12 if a run fails. With --vary, rounding is allowed; exits with 11 if random numbers hide the answer.
    """
    from harness.cli.commands.chaos import run_chaos

    return int(run_chaos(invocation, arguments))


setup_option = click.option(
    "--setup",
    metavar="COMMAND",
    help="Shell command that prepares the worktree of each other revision, e.g. 'uv sync'. RLHARNESS_CHECKOUT names the"
    " checkout, for data that git does not hold.",
)


@click.command(
    epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file. Default: the scenarios of"
    " [tool.rlharness.gate] in pyproject.toml, else all scenarios of the project. After --, a command of any program:"
    "  rlharness gate --base main -- python train.py"
)
@click.argument("scenarios", metavar="[SCENARIO]...", nargs=-1, shell_complete=complete_scenario)
@click.option(
    "--base",
    metavar="REV",
    help="Revision to compare with.  [default: the commit where this branch began; on the default branch, the parent"
    " commit]",
)
@click.option(
    "--golden", type=SomePath(), metavar="DIR", help="Compare with goldens: curves of earlier runs, committed in DIR."
)
@click.option(
    "--accept",
    is_flag=True,
    help="Run the working tree, and replace the goldens by its curves; needs --golden and --reason.",
)
@click.option("--reason", metavar="TEXT", help="Why the goldens may change; stored with them.")
@all_of(SCENARIO_OPTIONS)
@click.option(
    "--runs",
    type=click.IntRange(1),
    metavar="N",
    help="Number of runs of each revision; at least 2 with --golden. Four more follow if a cost that fails the gate"
    " seems too high.  [default: 2]",
)
@click.option(
    "--fail-on",
    metavar="REASON,...",
    help="Changes that fail the gate: behaviour, numerics, configuration, slowdown, memory, not_comparable; or none."
    "  [default: all except configuration]",
)
@click.option(
    "--slowdown",
    type=click.FloatRange(1, min_open=True),
    metavar="X",
    help="Fail if a step takes X times as long.  [default: 1.25]",
)
@click.option(
    "--memory",
    type=click.FloatRange(1, min_open=True),
    metavar="X",
    help="Fail if peak memory is X times as large.  [default: 1.25]",
)
@setup_option
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Time limit per run.  [default: none]")
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Directory for the traces; must be new or empty.  [default: .rlharness/gates]",
)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def gate(invocation: Invocation, /, **arguments: Any) -> int:
    """Classify the effect of a code change on training runs.

    A gate for CI: a run is equal, differs in numerics only, or differs in behaviour. Exits with 0 if the gate passes,
    10 if a change fails it, 11 if runs are not comparable, or 12 if a run fails.
    """
    from harness.cli.commands.gate import carry_out_gate

    return int(carry_out_gate(invocation, arguments))


@click.command(
    epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file, as in the working tree. Without it,"
    " everything after -- is the program:  rlharness bisect --good v1.0 --bad HEAD -- python train.py"
)
@click.argument("scenario", required=False, shell_complete=complete_scenario)
@click.option("--good", metavar="REV", help="Known-good revision.")
@click.option("--bad", metavar="REV", help="Known-bad descendant of the good revision.")
@click.option("--packages", metavar="NAME==A..B", help="Search between two versions of a package instead.")
@click.option(
    "--by",
    default="bits",
    metavar="bits|reward|METRIC>X",
    help="What makes a run bad: different bits, a different reward, or a curve value.  [default: bits]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="X",
    help="With --by reward, the largest difference allowed.  [default: 0]",
)
@all_of(SCENARIO_OPTIONS)
@setup_option
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Time limit per run.  [default: none]")
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Directory for the traces; must be new or empty.  [default: .rlharness/bisections]",
)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def bisect(invocation: Invocation, /, **arguments: Any) -> int:
    """Find the commit or package version that changed a run.

    Exits with 0 if it is found, 11 if the two ends do not differ as --by states, or 12 if runs fail.
    """
    from harness.cli.commands.bisect import run_bisect

    return int(run_bisect(invocation, arguments))
