"""The command line: reads arguments and the environment, hands frozen options to the rooms, prints user errors.

Nothing heavy is imported to parse arguments: each command imports its room when it runs.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from harness import __version__
from harness.errors import HarnessError, UsageError
from harness.exit_codes import ExitCode
from harness.runner.options import Invocation

Command = Callable[..., Any]


class Seconds(click.FloatRange):
    """Seconds, which nan is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The value as a float; fails for what is no number, out of range or nan."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


_color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colours.  [default: auto, which heeds NO_COLOR and FORCE_COLOR]",
)

_SHARED_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.argument("paths", nargs=-1, type=click.Path()),
    click.option(
        "--gpus",
        default="auto",
        metavar="auto|none|N|0,2,GPU-uuid|sim:N",
        help="Cards to use: every free one, none, a number, a list, or pretended ones.  [default: auto]",
    ),
    click.option("--cpu-units", type=click.IntRange(1), help="Files without GPU needs run at once.  [default: cores]"),
    click.option("--needs", "needs_file", type=click.Path(path_type=Path), help="TOML file of globs and their needs."),
    click.option("--mix-models/--no-mix-models", default=None, help="Allow cards of different models in one lease."),
    click.option(
        "--collect-timeout",
        type=Seconds(0, min_open=True),
        metavar="S",
        help="Limit on importing one file.  [default: 120]",
    ),
    click.option(
        "--containment",
        type=click.Choice(["auto", "cgroup", "pidns", "subreaper"]),
        default="auto",
        help="How process trees are held and ended.  [default: the strongest this machine allows]",
    ),
    click.option("--safe-path", is_flag=True, help="Keep the working directory off pytest's import path."),
    _color_option,
    click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output."),
)


def _all_of(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """These options as one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rlharness")
def cli() -> None:
    """Pack GPU tests onto free cards, run each file as its own process tree, end it for certain, lose nothing."""


@cli.command(epilog="Everything after -- goes to every pytest process:  rlharness run tests -- -k fast -q")
@_all_of(_SHARED_OPTIONS)
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
@click.option("--events", "events_file", type=click.Path(path_type=Path), help="Write every event, a JSON line each.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write a JUnit XML report.")
@click.option(
    "--device-ids",
    type=click.Choice(["uuid", "number"]),
    help="How CUDA_VISIBLE_DEVICES names leased cards; vLLM wants numbers.  [default: uuid]",
)
@click.option("--keep-tmp", is_flag=True, help="Keep the temporary directories of files that failed.")
@click.option("--plain", is_flag=True, help="Lines instead of the live display.")
@click.pass_obj
def run(invocation: Invocation, /, **arguments: Any) -> int:
    """Collect test files, pack them by what they need, run and report them."""
    from harness.runner.run import run_suite

    return int(run_suite(invocation, arguments))


@cli.command()
@_all_of(_SHARED_OPTIONS)
@click.option("--width", type=click.IntRange(40), help="Columns of the chart.  [default: the terminal's]")
@click.pass_obj
def plan(invocation: Invocation, /, **arguments: Any) -> int:
    """Show the schedule that `run` would follow, with its makespan and the lower bound."""
    from harness.runner.run import plan_suite

    return int(plan_suite(invocation, arguments))


@cli.command()
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
@_color_option
@click.pass_obj
def doctor(invocation: Invocation, /, **arguments: Any) -> int:
    """Look for what will break on this machine, and say how to mend it; exits with 1 where something will."""
    from harness.runner.doctor import run_doctor

    return int(run_doctor(invocation, arguments))


@cli.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--json", "json", is_flag=True, help="Print the verdict as JSON on standard output.")
@_color_option
@click.pass_obj
def diff(invocation: Invocation, /, **arguments: Any) -> int:
    """Compare two traces: equal, or the first place where they are not; exits with 0, 10, 11 or 12."""
    from harness.trace.command import run_diff

    return int(run_diff(invocation, arguments))


_RECORDING_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--metric",
        multiple=True,
        metavar="NAME=REGEX",
        help="Take a value of the curve from the lines that the program prints; may be given several times.",
    ),
    click.option(
        "--level",
        type=click.Choice(["off", "rerun", "invariant"]),  # the last is refused for commands, with the reason
        metavar="off|rerun|invariant",
        help="What is held of determinism; invariant by scenarios only.  [default: a scenario's own, else off]",
    ),
)


_KEPT_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--keep", multiple=True, metavar="STEPS", help="Keep the tensors of these steps: 3, or 3,7, or 10-12."
    ),
    click.option("--op-step", type=click.IntRange(0), metavar="K", help="Record every operation of step K."),
)


_SCENARIO_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--size", metavar="NAME", help="One of the scenario's sizes.  [default: full; smoke to replay]"),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a dotted key of its configuration; may be given several times.",
    ),
)


@cli.command()
@click.option("--json", "json", is_flag=True, help="Print them as JSON on standard output.")
@click.pass_obj
def scenarios(invocation: Invocation, /, **arguments: Any) -> int:
    """List what can be trained and replayed by name."""
    from harness.lab.scenario_list import run_scenarios

    return int(run_scenarios(invocation, arguments))


@cli.command(epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file.")
@click.argument("scenario")
@click.option("--out", type=click.Path(), required=True, metavar="DIR", help="Where the run goes; new or empty.")
@_all_of(_SCENARIO_OPTIONS)
@_all_of(_RECORDING_OPTIONS)
@_all_of(_KEPT_OPTIONS)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@click.pass_obj
def train(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario once, recorded and in this terminal."""
    from harness.lab.train import run_train

    return int(run_train(invocation, arguments))


@cli.command(
    epilog="SCENARIO is a name that `rlharness scenarios` shows, or a YAML file. Without one, everything after -- is"
    " the program:  rlharness replay -- python train.py --seed 7"
)
@click.argument("scenario", required=False)
@_all_of(_SCENARIO_OPTIONS)
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Give each run another value of what must not matter; may be given several times.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="How many.  [default: 2; 1 with --against]")
@click.option("--against", type=click.Path(), metavar="DIR", help="Compare with this trace, not with the first run.")
@click.option(
    "--out", type=click.Path(), metavar="DIR", help="Where the traces go; new or empty.  [default: .rlharness/replays]"
)
@click.option("--step", type=click.IntRange(0), metavar="K", help="Keep the tensors of step K.")
@click.option("--op", is_flag=True, help="Record every operation of that step too, in runs of their own.")
@_all_of(_RECORDING_OPTIONS)
@click.option("--timeout", type=Seconds(0, min_open=True), metavar="S", help="Limit on each run.  [default: none]")
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@_color_option
@click.pass_obj
def replay(invocation: Invocation, /, **arguments: Any) -> int:
    """Run a scenario or a PyTorch program several times, compare the runs bit by bit; exits with 0, 10, 11 or 12."""
    from harness.lab.replay import run_replay

    return int(run_replay(invocation, arguments))


@cli.command(epilog="Everything after -- is the program:  rlharness trace --out DIR -- python train.py --seed 7")
@click.option("--out", type=click.Path(), required=True, metavar="DIR", help="Where the trace goes; new or empty.")
@_all_of(_RECORDING_OPTIONS)
@_all_of(_KEPT_OPTIONS)
@click.pass_obj
def trace(invocation: Invocation, /, **arguments: Any) -> int:
    """Record a PyTorch program, unchanged and in this terminal; exits with the program's own exit code."""
    from harness.lab.trace import run_trace

    return int(run_trace(invocation, arguments))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before and after `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _invocation(trailing: Sequence[str]) -> Invocation:
    """What this process inherited; UsageError where its working directory has been deleted."""
    try:
        cwd = Path(os.getcwd())
    except FileNotFoundError:
        raise UsageError("the working directory does not exist any more", remedy="change into one that does") from None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return Invocation(cwd, dict(os.environ), tuple(trailing), is_terminal)


def _open_closed_files() -> None:
    """Open what a shell's `>&-` has closed: the next file to be opened would be taken for it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))


def _answer_in_json(own: Sequence[str], code: ExitCode, error: str) -> None:
    """What --json prints where no run has begun: the keys that a finished run has for it too."""
    if "--json" in own:
        with suppress(OSError):  # it is why the command is refused, or gone
            click.echo(json.dumps({"version": 1, "exit_code": int(code), "error": error}))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors are printed, never raised."""
    _open_closed_files()
    own, trailing = _split(list(sys.argv[1:] if argv is None else argv))
    try:
        invocation = _invocation(trailing)
        return int(cli.main(args=own, prog_name="rlharness", obj=invocation, standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        _answer_in_json(own, ExitCode.USAGE_ERROR, error.format_message())
        return ExitCode.USAGE_ERROR
    except HarnessError as error:
        click.echo(f"error: {error}", err=True)
        if not error.in_record:
            _answer_in_json(own, error.exit_code, str(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception:  # the last stop: our own bug, and the only one that shows a traceback
        traceback.print_exc()
        click.echo("error: this is a bug in rlharness; the traceback above names the place", err=True)
        return ExitCode.INTERNAL_ERROR
