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
    trace_step_option,
    trust_option,
)
from harness.cli.reproduce_line import SUBJECT, reproduce_line
from harness.process.invocation import Invocation


@click.command()
@click.option("--check", is_flag=True, help="Exit with 4 if a file is not a scenario.")
@click.option("--json", "json", is_flag=True, help="Print the list as JSON on standard output.")
@click.pass_obj
def scenarios(invocation: Invocation, /, **arguments: Any) -> int:
    """List the scenarios that can be trained and replayed by name."""
    from harness.cli.commands.scenarios import run_scenarios

    return int(run_scenarios(invocation, arguments))


@click.command(epilog="Without NAME and --out: list the names.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--out", type=SomePath(path_type=Path), metavar="DIR", help="Write the schema, or all of them, into DIR.")
@click.pass_obj
def schema(invocation: Invocation, /, **arguments: Any) -> int:
    """Print JSON schemas for editors.

    NAME is pyproject ([tool.rlharness]), scenario (every scenario file), or an entry such as rlcore.entrypoint:run.
    """
    from harness.cli.commands.schema import run_schema

    return int(run_schema(invocation, arguments))


@click.command(epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file.")
@click.argument("scenario", shell_complete=complete_scenario)
@click.option(
    "--out", type=SomePath(), required=True, metavar="DIR", help="Directory for the run; must be new or empty."
)
@all_of(SCENARIO_OPTIONS)
@all_of(RECORDING_OPTIONS)
@all_of(KEPT_OPTIONS)
@all_of(BREAK_OPTIONS)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@click.pass_obj
def train(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario once in this terminal, and record it.

    Exits with the exit code of the run, or with 12 if the recording is incomplete.
    """
    from harness.cli.commands.train import run_train

    return int(run_train(invocation, arguments))


@click.command(
    epilog="Everything after -- is the program to record:  rlharness trace --out DIR -- python train.py --seed 7"
)
@click.option(
    "--out", type=SomePath(), required=True, metavar="DIR", help="Directory for the trace; must be new or empty."
)
@all_of(RECORDING_OPTIONS)
@all_of(KEPT_OPTIONS)
@all_of(BREAK_OPTIONS)
@click.option(
    "--sentinel",
    type=click.IntRange(1),
    metavar="N",
    help="Compare digests of weights, gradients and moments between ranks that must agree (DistributedDataParallel,"
    " FSDP2), every N optimizer steps; end the program where they differ.",
)
@click.pass_obj
def trace(invocation: Invocation, /, **arguments: Any) -> int:
    """Record an unmodified PyTorch program in this terminal.

    Exits with the exit code of the program, or with 12 if the recording is incomplete, or with 10 if --sentinel ended
    the program because replicas differ.
    """
    from harness.cli.commands.trace import run_trace

    return int(run_trace(invocation, arguments))


@click.command(
    epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file. Without it, everything after -- is"
    " the program:  rlharness replay -- python train.py --seed 7\n\nTo repeat a recorded run, use rlharness reproduce."
)
@click.argument("scenario", metavar="[SCENARIO]", required=False, shell_complete=complete_scenario)
@all_of(SCENARIO_OPTIONS)
@click.option(
    "--sweep",
    "sweep",
    multiple=True,
    metavar="KEY=V1,V2",
    help="For a scenario: sweep a runtime setting, which must not affect results, with one value per run. Repeatable.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Number of runs.  [default: 2; 1 with --against]")
@click.option(
    "--against", type=SomePath(), metavar="DIR", help="Compare with the trace in DIR instead of the first run."
)
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Directory for the traces; must be new or empty.  [default: .rlharness/replays]",
)
@click.option(
    "--step", type=click.IntRange(0), metavar="K", help="Save the tensors of step K; steps are numbered from 0."
)
@trace_step_option
@click.option(
    "--resume-at",
    metavar="K",
    help="Kill a run after K optimizer steps, resume it with --resume-command, and report what it lost; K,L kills the"
    " resumed run after step L as well.",
)
@click.option(
    "--resume-command",
    metavar="COMMAND",
    help="Command line that resumes the run of --resume-at.  [default: resume_command of the scenario]",
)
@all_of(BREAK_OPTIONS)
@all_of(RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Time limit per run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def replay(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario or program several times and compare each bit.

    Each run is a fresh process. Exits with 0 if all runs are equal, 10 if they diverge, 11 if they are not comparable,
    or 12 if a recording is incomplete. With --until or --break-on, rlharness makes a single run, ends it at the
    condition, and exits with 0, or with 10 at a divergence from --against. With --resume-at, it exits with 0 if the
    resumed run loses nothing, 10 if it does, or 11 if there is no comparison.
    """
    from harness.cli.commands.replay import run_replay

    return int(
        run_replay(invocation, arguments, reproduce_line(reproduce, {**arguments, SUBJECT: arguments["scenario"]}))
    )


@click.command(
    epilog="RUN is the directory of a recorded run: of a scenario, or of a command, which is typed again after --."
    " BUNDLE is a file written by --bundle.\n\nA recording names the code that it uses."
    " rlharness lists every such name that no local scenario declares, and uses it only with --trust."
)
@click.argument("subject", metavar="RUN|BUNDLE", type=SomePath())
@click.option(
    "--step",
    type=click.IntRange(0),
    metavar="K",
    help="Repeat only step K, numbered from 0, starting from the nearest checkpoint before it.",
)
@trace_step_option
@click.option("--interactive", is_flag=True, help="Open the step debugger at step K.")
@click.option("--commands", type=SomePath(), metavar="FILE", help="Read the debugger's commands from FILE.")
@click.option(
    "--against",
    type=SomePath(),
    metavar="OTHER",
    help="Compare with another run: with --step K with its step K, which is repeated too; without, with its trace.",
)
@click.option(
    "--bundle",
    type=SomePath(),
    metavar="FILE",
    help="Export step K, or the step at which the run stopped, to one file.",
)
@click.option("--reference-checkpoint", is_flag=True, help="Store only the path of the checkpoint in the bundle.")
@all_of(BREAK_OPTIONS)
@trust_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a runtime setting, or supply a secret that was not recorded. Repeatable.",
)
@click.option(
    "--out",
    type=SomePath(),
    metavar="DIR",
    help="Directory for the runs; must be new or empty.  [default: .rlharness/reproductions]",
)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Time limit per run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def reproduce(invocation: Invocation, /, **arguments: Any) -> int:
    """Repeat a recorded run or one of its steps, and compare.

    Exits with 0 if every bit is reproduced, 10 if it diverges, 11 if it is not comparable, or 12 if a recording is
    incomplete. With --until or --break-on only --break-on divergence compares; any other run that ends in order exits
    with 0.
    """
    from harness.cli.commands.reproduce import run_reproduce

    return int(run_reproduce(invocation, arguments))


@click.command()
@click.argument("a", type=SomePath())
@click.argument("b", type=SomePath())
@click.option(
    "--steps",
    metavar="FIRST-LAST",
    help="Compare only these steps, e.g. the part a resumed run shares with the original.",
)
@click.option(
    "--shift",
    type=click.IntRange(min=1),
    metavar="K",
    help="B was resumed at step K of A and counts from 0 again: compare its step 0 with A's step K.",
)
@click.option("--json", "json", is_flag=True, help="Print the verdict as JSON on standard output.")
@color_option
@click.pass_obj
def diff(invocation: Invocation, /, **arguments: Any) -> int:
    """Compare two traces, and report the first difference.

    A step is recorded in phases: rollout (the batch that comes in), reward, advantage, forward, loss, backward
    (gradients), optimizer, sync. A value is one tensor, number or text of a phase. An ulp is the distance from one
    float to the next.

    Exits with 0 if they are equal, 10 if they diverge, 11 if they are not comparable, or 12 if one is incomplete.
    """
    from harness.cli.commands.diff import run_diff

    return int(run_diff(invocation, arguments))


@click.command(
    epilog="TRACE is a directory written by trace, RUN one written by train or replay. The directory of a replay stands"
    " for all its runs. With three or more traces, each is compared with the first."
)
@click.argument("traces", metavar="TRACE|RUN...", nargs=-1, required=True, type=SomePath())
@click.option(
    "--out",
    type=SomePath(),
    default="report.html",
    metavar="FILE",
    help="File for the page; replaces an earlier report.  [default: report.html]",
)
@click.option("--json", "json", is_flag=True, help="Print the verdicts as JSON on standard output.")
@click.pass_obj
def report(invocation: Invocation, /, **arguments: Any) -> int:
    """Write one HTML page that shows where and how runs diverge.

    The page is self-contained: it needs no network and no server.
    """
    from harness.cli.commands.report import run_report

    return int(run_report(invocation, arguments))
