"""Commands that record runs, and compare what was recorded: scenarios, train, trace, replay, diff, report."""

from typing import Any

import click

from harness.cli.options import (
    BREAK_OPTIONS,
    KEPT_OPTIONS,
    RECORDING_OPTIONS,
    SCENARIO_OPTIONS,
    Seconds,
    SomePath,
    all_of,
    color_option,
    trust_option,
)
from harness.core.invocation import Invocation


@click.command()
@click.option("--json", "json", is_flag=True, help="Print them as JSON on standard output.")
@click.pass_obj
def scenarios(invocation: Invocation, /, **arguments: Any) -> int:
    """List what can be trained and replayed by name."""
    from harness.cli.commands.scenarios import run_scenarios

    return int(run_scenarios(invocation, arguments))


@click.command(epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file.")
@click.argument("scenario")
@click.option("--out", type=SomePath(), required=True, metavar="DIR", help="Where the run goes; new or empty.")
@all_of(SCENARIO_OPTIONS)
@all_of(RECORDING_OPTIONS)
@all_of(KEPT_OPTIONS)
@all_of(BREAK_OPTIONS)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@click.pass_obj
def train(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario once, recorded and in this terminal."""
    from harness.cli.commands.train import run_train

    return int(run_train(invocation, arguments))


@click.command(epilog="Everything after -- is the program:  rlharness trace --out DIR -- python train.py --seed 7")
@click.option("--out", type=SomePath(), required=True, metavar="DIR", help="Where the trace goes; new or empty.")
@all_of(RECORDING_OPTIONS)
@all_of(KEPT_OPTIONS)
@all_of(BREAK_OPTIONS)
@click.pass_obj
def trace(invocation: Invocation, /, **arguments: Any) -> int:
    """Record a PyTorch program, unchanged and in this terminal; exits with the program's own exit code."""
    from harness.cli.commands.trace import run_trace

    return int(run_trace(invocation, arguments))


@click.command(
    epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file; RUN the directory of a recorded run of"
    " one. Without either, everything after -- is the program:  rlharness replay -- python train.py --seed 7\n\nA RUN"
    " or a bundle says which code is called, and with which files. Of one that you have not recorded on this machine,"
    " everything that no scenario here names is listed, and is used with --trust only."
)
@click.argument("scenario", metavar="[SCENARIO|RUN]", required=False)
@all_of(SCENARIO_OPTIONS)
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Give each run another value of what must not matter; may be given several times.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="How many.  [default: 2; 1 with --against]")
@click.option("--against", type=SomePath(), metavar="DIR", help="Compare with this trace, not with the first run.")
@click.option(
    "--out", type=SomePath(), metavar="DIR", help="Where the traces go; new or empty.  [default: .rlharness/replays]"
)
@click.option(
    "--step",
    type=click.IntRange(0),
    metavar="K",
    help="Keep the tensors of step K; of a recorded run, run it again, from the nearest checkpoint before it.",
)
@click.option("--op", is_flag=True, help="Record every operation of that step too, in runs of their own.")
@click.option("--interactive", is_flag=True, help="Stand inside step K of a recorded run: phases as steps.")
@click.option("--commands", type=SomePath(), metavar="FILE", help="Of --interactive: read the commands from FILE.")
@all_of(BREAK_OPTIONS)
@click.option(
    "--bundle",
    type=SomePath(),
    metavar="FILE",
    help="Write the step that was run again, or at which a run has ended, as one file; alone: run that of FILE again.",
)
@click.option(
    "--reference-checkpoint",
    is_flag=True,
    help="Name the checkpoint in the bundle instead of putting it there.",
)
@trust_option
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def replay(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario or a PyTorch program several times, compare the runs bit by bit; exits with 0, 10, 11 or 12."""
    from harness.cli.commands.replay import run_replay

    return int(run_replay(invocation, arguments))


@click.command()
@click.argument("a", type=SomePath())
@click.argument("b", type=SomePath())
@click.option("--steps", metavar="FIRST-LAST", help="Compare these steps only: what a run that went on has of another.")
@click.option("--json", "json", is_flag=True, help="Print the verdict as JSON on standard output.")
@color_option
@click.pass_obj
def diff(invocation: Invocation, /, **arguments: Any) -> int:
    """Compare two traces: equal, or the first place where they are not; exits with 0, 10, 11 or 12."""
    from harness.cli.commands.diff import run_diff

    return int(run_diff(invocation, arguments))


@click.command(
    epilog="A TRACE is a directory that trace, train or replay has written; the directory of a whole replay stands for"
    " its runs. Three or more: each is compared with the first."
)
@click.argument("traces", metavar="TRACE|RUN...", nargs=-1, required=True, type=SomePath())
@click.option(
    "--out",
    type=SomePath(),
    default="report.html",
    metavar="FILE",
    help="Where the page goes; an earlier report is replaced.  [default: report.html]",
)
@click.option("--json", "json", is_flag=True, help="Print the verdicts as JSON on standard output.")
@click.pass_obj
def report(invocation: Invocation, /, **arguments: Any) -> int:
    """Write one HTML page, which needs no network, of one, two or more runs: where they part, and how."""
    from harness.cli.commands.report import run_report

    return int(run_report(invocation, arguments))
