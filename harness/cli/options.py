"""Options that several commands take. Only the command line imports this."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from harness.bits.redaction import NO_REDACT, secrets_kept
from harness.process.invocation import Invocation

Command = Callable[..., Any]
Options = tuple[Callable[[Command], Command], ...]


class Seconds(click.FloatRange):
    """A number of seconds, not NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the value as a float; fail for anything else, a value out of range, or NaN."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


LAUNCHED = "launched"
"""Value of an option for ranks that is given without a number."""


class NumRanks(click.IntRange):
    """A number of ranks; 0, which cannot be typed, for those that a launcher has started."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, and 0 for an option without a value."""
        return 0 if value == LAUNCHED else super().convert(value, param, ctx)


class SomePath(click.Path):
    """A path, not empty: an unset shell variable gives an empty text, which would mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as typed; fail for an empty one."""
        if not value:
            self.fail(f"{value!r} is not a path.", param, ctx)
        return super().convert(value, param, ctx)


color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="When to use colours.  [default: auto, which respects NO_COLOR and FORCE_COLOR]",
)


SHARED_OPTIONS: Options = (
    click.argument("paths", nargs=-1, type=SomePath()),
    click.option(
        "--gpus",
        default="auto",
        metavar="auto|none|N|0,2,GPU-uuid|as-is:0|sim:N",
        help="GPUs to use: all free ones, none, a count, a list, a list of GPUs that may be in use, or N simulated"
        " ones, to schedule with; sim:4xA,4xB simulates two models.  [default: auto]",
    ),
    click.option(
        "--cpu-units",
        type=click.IntRange(1),
        help="How many files that need no GPU run at the same time.  [default: number of cores]",
    ),
    click.option("-k", "keyword", metavar="EXPR", help="Run only tests whose names match, as -k of pytest does."),
    click.option("-m", "marker", metavar="EXPR", help="Run only tests whose markers match, as -m of pytest does."),
    click.option(
        "--deselect", multiple=True, metavar="NODE-ID", help="Leave out the tests whose node id begins so. Repeatable."
    ),
    click.option(
        "--shard",
        metavar="K/N",
        help="Run only shard K of N, balanced by expected durations; all N shards together run every file once.",
    ),
    click.option(
        "--last-failed",
        "--lf",
        is_flag=True,
        help="Run only what failed or did not run in the latest run, or everything if nothing did.",
    ),
    click.option(
        "--resume",
        metavar="RUN",
        help="Keep what passed in this run, unless its file has changed, and run everything else: a run id, latest, or"
        " a directory.",
    ),
    click.option("--failed-first", "--ff", is_flag=True, help="Start the files that failed in the latest run first."),
    click.option(
        "--isolate",
        type=click.Choice(["file", "test", "worker", "interpreter"]),
        help="What has a process of its own: each file, a fork of a session that has loaded the plugins, conftest files"
        " and common imports; each test; each worker, which takes one file after the other; or each file, in an"
        " interpreter started for it.  [default: file]",
    ),
    click.option(
        "--needs",
        "needs_file",
        type=SomePath(path_type=Path),
        help='TOML file that maps globs of test files to their needs, e.g. "tests/gpu/**" = 1.',
    ),
    click.option("--mix-models/--no-mix-models", default=None, help="Allow a file to get GPUs of different models."),
    click.option(
        "--workers-per-gpu",
        type=click.IntRange(1),
        metavar="N",
        help="How many files without a need share each GPU; each has that part of its memory as its budget.",
    ),
    click.option(
        "--split/--no-split",
        default=None,
        help="Run a file in parts if it would end long after the others.  [default: --split]",
    ),
    click.option(
        "--collect-timeout",
        type=Seconds(0, min_open=True),
        metavar="S",
        help="Time limit for importing one file.  [default: 120]",
    ),
    click.option(
        "--containment",
        type=click.Choice(["auto", "cgroup", "pidns", "subreaper"]),
        default="auto",
        help="How to contain and terminate process trees, strongest first: cgroup, pidns (a PID namespace), subreaper"
        " (adopts orphans only).  [default: the strongest that this machine allows]",
    ),
    click.option("--safe-path", is_flag=True, help="Keep the working directory off pytest's import path."),
    color_option,
    click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output."),
)

RECORDING_OPTIONS: Options = (
    click.option(
        "--metric",
        multiple=True,
        metavar="NAME=REGEX",
        help="Read a curve value from the lines that the program prints. Repeatable.",
    ),
    click.option(
        "--level",
        type=click.Choice(["off", "deterministic", "invariant"]),  # the last is refused for commands, with the reason
        metavar="off|deterministic|invariant",
        help="Determinism level. deterministic sets the variables and torch flags that make runs repeat; invariant is"
        " for scenarios whose code is batch-invariant.  [default: the scenario's level; off for a program]",
    ),
)

KEPT_OPTIONS: Options = (
    click.option(
        "--save-tensors",
        "keep",
        multiple=True,
        metavar="STEPS",
        help="Save the tensors of these steps, numbered from 0: 3, or 3,7, or 10-12.",
    ),
    click.option(
        "--trace-ops",
        "op_step",
        type=click.IntRange(0),
        metavar="K",
        help="Record every operation of step K; steps are numbered from 0.",
    ),
)

BREAK_OPTIONS: Options = (
    click.option(
        "--break-on",
        multiple=True,
        metavar="CONDITION",
        help="Stop the run within a step, as soon as it has a nan or an inf, or a divergence (replay and reproduce"
        " only); or after a step, with a COMPARISON as for --until. Repeatable.",
    ),
    click.option(
        "--until",
        multiple=True,
        metavar="COMPARISON",
        help="Stop the run after the first step whose curve (loss, reward_mean, any logged value) satisfies COMPARISON,"
        " e.g. 'reward<0.2'. Repeatable.",
    ),
)

SCENARIO_OPTIONS: Options = (
    click.option(
        "--size",
        metavar="NAME",
        help="For a scenario: a size that `rlharness scenarios` lists.  [default: full for train, else smoke]",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="For a scenario: override a dotted key of its configuration. Repeatable.",
    ),
)

trace_step_option = click.option(
    "--trace-ops",
    "has_operations",
    is_flag=True,
    help="With --step K: record every operation of that step as well, in an additional run.",
)

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Accept a recording that names code or files which no local scenario declares.",
)


def _keep_secrets(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Leave secrets in what the command prints and writes, and in what its children write, until it ends."""
    if is_given and not context.resilient_parsing:
        context.with_resource(secrets_kept())
        if isinstance(context.obj, Invocation):
            context.obj = replace(context.obj, environ={**context.obj.environ, NO_REDACT: "1"})
            context.obj.note("--no-redact: what this command prints and writes may hold passwords and keys")


no_redact_option = click.Option(
    ["--no-redact"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_keep_secrets,
    help="Leave passwords and keys in everything that this command prints and writes, which must then stay private."
    " Without it each is replaced by <redacted>.",
)
"""An option of every command."""


def all_of(options: Options) -> Callable[[Command], Command]:
    """Return these options as one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
