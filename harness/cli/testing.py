"""Commands about tests and the machine they run on: run, plan, doctor."""

from pathlib import Path
from typing import Any

import click

from harness.cli.options import SHARED_OPTIONS, Seconds, SomePath, all_of, color_option
from harness.core.invocation import Invocation


@click.command(epilog="Everything after -- goes to every pytest process:  rlharness run tests -- -k fast -q")
@all_of(SHARED_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on one file.  [default: 1800]")
@click.option("--grace", type=Seconds(0), metavar="S", help="From SIGINT to SIGKILL.  [default: 10]")
@click.option("--slow", type=Seconds(0), metavar="S", help="Say that a file is slow after S.  [default: 60]")
@click.option("--maxfail", type=click.IntRange(0), metavar="N", help="Start no file after N have failed; 0: no limit.")
@click.option("-x", "maxfail", flag_value=1, type=int, help="Same as --maxfail 1.")
@click.option(
    "--allow-missing-gpus/--no-allow-missing-gpus",
    default=None,
    help="Exit 0 although files were not run for want of GPUs.",
)
@click.option("--events", "events_file", type=SomePath(path_type=Path), help="Write every event, a JSON line each.")
@click.option("--junit", "junit_file", type=SomePath(path_type=Path), help="Write a JUnit XML report.")
@click.option(
    "--device-ids",
    type=click.Choice(["uuid", "number"]),
    help="How CUDA_VISIBLE_DEVICES names leased GPUs; vLLM wants numbers.  [default: uuid]",
)
@click.option("--keep-tmp", is_flag=True, help="Keep the temporary directories of files that failed.")
@click.option("--plain", is_flag=True, help="Lines instead of the live display.")
@click.pass_obj
def run(invocation: Invocation, /, **arguments: Any) -> int:
    """Collect test files, pack them by what they need, run and report them."""
    from harness.cli.commands.run import run_suite

    return int(run_suite(invocation, arguments))


@click.command()
@all_of(SHARED_OPTIONS)
@click.option("--width", type=click.IntRange(40), help="Columns of the chart.  [default: the terminal's]")
@click.pass_obj
def plan(invocation: Invocation, /, **arguments: Any) -> int:
    """Show the schedule that `run` would follow, with its makespan and the lower bound."""
    from harness.cli.commands.run import plan_suite

    return int(plan_suite(invocation, arguments))


@click.command()
@click.option("--json", "json", is_flag=True, help="Print the findings as JSON on standard output.")
@click.option("--fix", is_flag=True, help="Print the lines of a shell that mend what variables can mend, for eval.")
@click.option("--numerics", is_flag=True, help="Look too at which operations of torch keep their bits; takes seconds.")
@click.option(
    "--distributed",
    type=click.IntRange(2),
    metavar="N",
    help="Start N ranks and Ray, and find the layer at which they stick.",
)
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), help="Of the ranks.  [default: gloo]")
@click.option(
    "--listen",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Wait here for other hosts, and find the interfaces over which all of them can talk.",
)
@click.option("--peer", metavar="HOST:PORT", help="Meet the host that listens there.")
@click.option("--hosts", type=click.IntRange(2), metavar="N", help="How many hosts meet.  [default: 2]")
@click.option("--wait", type=Seconds(0, min_open=True), metavar="S", help="How long to wait for them.  [default: 120]")
@color_option
@click.pass_obj
def doctor(invocation: Invocation, /, **arguments: Any) -> int:
    """Look for what will break on this machine, and say how to mend it; exits with 1 where something will."""
    from harness.cli.commands.doctor import run_doctor

    return int(run_doctor(invocation, arguments))
