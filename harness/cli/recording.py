"""Commands of recorded runs: scenarios, schema, train, trace, replay, reproduce, diff, report."""

from pathlib import Path
from typing import Any

import click

from harness.cli.completion import complete_scenario
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
from harness.cli.reproduce_line import SUBJECT, reproduce_line
from harness.core.invocation import Invocation


@click.command()
@click.option("--check", is_flag=True, help="Exit with 4 if a file does not hold a scenario.")
@click.option("--json", "json", is_flag=True, help="Print them as JSON on standard output.")
@click.pass_obj
def scenarios(invocation: Invocation, /, **arguments: Any) -> int:
    """List what can be trained and replayed by name."""
    from harness.cli.commands.scenarios import run_scenarios

    return int(run_scenarios(invocation, arguments))


@click.command(epilog="Without NAME and --out: list the names.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--out", type=SomePath(path_type=Path), metavar="DIR", help="Write the schema, or all of them, into DIR.")
@click.pass_obj
def schema(invocation: Invocation, /, **arguments: Any) -> int:
    """Print the JSON schema of [tool.rlharness], of scenario files, or of the scenario files of one entry."""
    from harness.cli.commands.schema import run_schema

    return int(run_schema(invocation, arguments))


@click.command(epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file.")
@click.argument("scenario", shell_complete=complete_scenario)
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
    epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file. Without one, everything after -- is"
    " the program:  rlharness replay -- python train.py --seed 7\n\nrlharness reproduce runs something recorded again."
)
@click.argument("scenario", metavar="[SCENARIO]", required=False, shell_complete=complete_scenario)
@all_of(SCENARIO_OPTIONS)
@click.option(
    "--sweep",
    "sweep",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Give each run another value of what must not matter; may be given several times.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="How many.  [default: 2; 1 with --against]")
@click.option("--against", type=SomePath(), metavar="DIR", help="Compare with this trace, not with the first run.")
@click.option(
    "--out", type=SomePath(), metavar="DIR", help="Where the traces go; new or empty.  [default: .rlharness/replays]"
)
@click.option("--step", type=click.IntRange(0), metavar="K", help="Keep the tensors of step K.")
@click.option(
    "--trace-ops", "has_operations", is_flag=True, help="Record every operation of step K, in additional runs."
)
@all_of(BREAK_OPTIONS)
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def replay(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario or a PyTorch program several times, compare the runs bit by bit; exits with 0, 10, 11 or 12."""
    from harness.cli.commands.replay import run_replay

    return int(
        run_replay(invocation, arguments, reproduce_line(reproduce, {**arguments, SUBJECT: arguments["scenario"]}))
    )


@click.command(
    epilog="RUN is the directory of a recorded run of a scenario, BUNDLE a file that --bundle has written.\n\nBoth say"
    " which code is called, and with which files. Of one that you have not recorded on this machine, everything that no"
    " scenario here names is listed, and is used with --trust only."
)
@click.argument("subject", metavar="RUN|BUNDLE", type=SomePath())
@click.option(
    "--step", type=click.IntRange(0), metavar="K", help="Run step K again, from the nearest checkpoint before it."
)
@click.option(
    "--trace-ops", "has_operations", is_flag=True, help="Record every operation of step K, in an additional run."
)
@click.option("--interactive", is_flag=True, help="Open the step debugger at step K.")
@click.option("--commands", type=SomePath(), metavar="FILE", help="Read the debugger's commands from FILE.")
@click.option(
    "--against",
    type=SomePath(),
    metavar="OTHER",
    help="Compare with another run: its step K, which is run again too; without --step its trace.",
)
@click.option(
    "--bundle",
    type=SomePath(),
    metavar="FILE",
    help="Write step K, or the step at which the run has ended, as one file.",
)
@click.option(
    "--reference-checkpoint", is_flag=True, help="Name the checkpoint in the bundle instead of putting it there."
)
@all_of(BREAK_OPTIONS)
@trust_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of a free section, or give a secret that was not recorded; may be given several times.",
)
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Where the runs go; new or empty.  [default: .rlharness/reproductions]",
)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def reproduce(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a recorded run or one of its steps again, prove that it is the same; exits with 0, 10, 11 or 12."""
    from harness.cli.commands.reproduce import run_reproduce

    return int(run_reproduce(invocation, arguments))


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
