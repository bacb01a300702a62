"""Commands about tests and the machine they run on: run, plan, merge, history, doctor."""

from pathlib import Path
from typing import Any

import click

from harness.cli.options import LAUNCHED, SHARED_OPTIONS, NumRanks, Seconds, SomePath, all_of, color_option
from harness.process.invocation import Invocation


@click.command(
    epilog="Everything after -- is passed to every pytest process:  rlharness run tests -- -q --tb=short\n\nResults are"
    " kept in .rlharness/runs: beside the pyproject.toml that has [tool.rlharness], or in the current directory."
)
@all_of(SHARED_OPTIONS)
@click.option(
    "--timeout",
    type=Seconds(0, min_open=True),
    metavar="S",
    help="Time limit for one file; a timeout marker limits one test, and both apply.  [default: 1800]",
)
@click.option(
    "--grace",
    type=Seconds(0),
    metavar="S",
    help="Seconds between SIGINT and SIGKILL when a file is ended.  [default: 10]",
)
@click.option(
    "--wait",
    type=Seconds(0),
    metavar="S",
    help="Wait up to S seconds for GPUs that others use: all that --gpus counts or names, or one with auto."
    "  [default: 0]",
)
@click.option("--slow", type=Seconds(0), metavar="S", help="Report a file as slow after S seconds.  [default: 60]")
@click.option(
    "--maxfail", type=click.IntRange(0), metavar="N", help="Start no more files after N have failed; 0 means no limit."
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    metavar="N",
    help="Run the failed tests of a file again, up to N times; a file that then passes is flaky.  [default: 0]",
)
@click.option(
    "--check-leaning/--no-check-leaning",
    default=None,
    help="Run a failing file once more after the files before it: one that then passes is leaning. That is a failure"
    ' unless the configuration has leaning = "report".  [default: --no-check-leaning]',
)
@click.option(
    "--durations", type=click.IntRange(0), metavar="N", help="Print the N slowest tests of the run.  [default: 0]"
)
@click.option("-x", "maxfail", flag_value=1, type=int, help="Same as --maxfail 1.")
@click.option(
    "--allow-missing-gpus/--no-allow-missing-gpus",
    default=None,
    help="Exit with 0 even if files were not run for lack of GPUs.",
)
@click.option(
    "--events",
    "events_file",
    type=SomePath(path_type=Path),
    help="Write every event to this file, one JSON object per line.",
)
@click.option("--junit", "junit_file", type=SomePath(path_type=Path), help="Write a JUnit XML report to this file.")
@click.option(
    "--html", "html_file", type=SomePath(path_type=Path), help="Write the HTML page of the run to this file as well."
)
@click.option(
    "--results-dir",
    type=SomePath(path_type=Path, file_okay=False),
    help="Make .rlharness, with results and outputs, in this directory.  [default: that of the configuration]",
)
@click.option(
    "--trace-events",
    "trace_events_file",
    type=SomePath(path_type=Path),
    help="Write the timeline to this file as JSON for ui.perfetto.dev or chrome://tracing.",
)
@click.option(
    "--device-ids",
    type=click.Choice(["uuid", "number"]),
    help="How CUDA_VISIBLE_DEVICES names the GPUs of a file; vLLM needs numbers.  [default: uuid]",
)
@click.option("--keep-tmp", is_flag=True, help="Keep the temporary directories of failed files.")
@click.option("--plain", is_flag=True, help="Print lines instead of the live display.")
@click.pass_obj
def run(invocation: Invocation, /, **arguments: Any) -> int:
    """Run test files in parallel, packed onto the GPUs they need.

    Each file runs in its own process tree, which is always terminated. Exits with 0 if all tests pass.
    """
    from harness.cli.commands.run import run_suite

    return int(run_suite(invocation, arguments))


@click.command()
@all_of(SHARED_OPTIONS)
@click.option(
    "--width", type=click.IntRange(40), help="Width of the chart in columns.  [default: width of the terminal]"
)
@click.pass_obj
def plan(invocation: Invocation, /, **arguments: Any) -> int:
    """Show the schedule that `run` would use.

    Includes the makespan of the schedule and a lower bound. Exits with 1 if a file cannot be collected, and with 0 if
    a file needs more GPUs than there are.
    """
    from harness.cli.commands.run import plan_suite

    return int(plan_suite(invocation, arguments))


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=SomePath())
@click.option("--junit", "junit_file", type=SomePath(path_type=Path), help="Write a JUnit XML report to this file.")
@color_option
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@click.pass_obj
def merge(invocation: Invocation, /, **arguments: Any) -> int:
    """Merge recorded runs, such as all shards of a suite, into one summary.

    RUN is the directory of a run, or its events.jsonl. The exit code is that of one run over all their files.
    """
    from harness.cli.commands.merge import merge_recorded

    return int(merge_recorded(invocation, arguments))


@click.command()
@click.argument("name", required=False, type=SomePath(), metavar="[TEST-OR-FILE]")
@click.option(
    "--limit", type=click.IntRange(1), default=50, metavar="N", help="Files or tests to print at most.  [default: 50]"
)
@click.option("--json", "json", is_flag=True, help="Print everything as JSON on standard output.")
@click.pass_obj
def history(invocation: Invocation, /, **arguments: Any) -> int:
    """Show durations and outcomes of files and tests in the last runs.

    Without TEST-OR-FILE, all files are listed, longest first.
    """
    from harness.cli.commands.history import show_history

    return int(show_history(invocation, arguments))


@click.command()
@click.option("--json", "json", is_flag=True, help="Print the findings as JSON on standard output.")
@click.option("--fix", is_flag=True, help="Print shell commands that fix the environment variables, for use with eval.")
@click.option("--numerics", is_flag=True, help="Also check which torch operations are batch-invariant; takes seconds.")
@click.option(
    "--distributed",
    is_flag=False,
    flag_value=LAUNCHED,
    type=NumRanks(2),
    metavar="[N]",
    help="Start N ranks and Ray, and find the layer at which they hang. Without N: use the ranks of the launcher.",
)
@click.option(
    "--backend", type=click.Choice(["gloo", "nccl"]), help="Communication backend of the ranks.  [default: gloo]"
)
@color_option
@click.pass_obj
def doctor(invocation: Invocation, /, **arguments: Any) -> int:
    """Check this machine for problems, and print remedies.

    Exits with 1 if a problem would break tests or training runs.
    """
    from harness.cli.commands.doctor import run_doctor

    return int(run_doctor(invocation, arguments))
