"""Options that several commands take. Only the command line imports this."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]
Options = tuple[Callable[[Command], Command], ...]


class Seconds(click.FloatRange):
    """Seconds, which nan is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The value as a float; fails for what is no number, out of range or nan."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class SomePath(click.Path):
    """A path. An empty text is none: it comes of a variable that a shell does not know, and would be taken for `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as it was typed; fails for an empty one."""
        if not value:
            self.fail(f"{value!r} is not a path.", param, ctx)
        return super().convert(value, param, ctx)


color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colours.  [default: auto, which heeds NO_COLOR and FORCE_COLOR]",
)


SHARED_OPTIONS: Options = (
    click.argument("paths", nargs=-1, type=SomePath()),
    click.option(
        "--gpus",
        default="auto",
        metavar="auto|none|N|0,2,GPU-uuid|sim:N",
        help="GPUs to use: every free one, none, a number, a list, or pretended ones.  [default: auto]",
    ),
    click.option("--cpu-units", type=click.IntRange(1), help="Files without GPU needs run at once.  [default: cores]"),
    click.option("--needs", "needs_file", type=SomePath(path_type=Path), help="TOML file of globs and their needs."),
    click.option("--mix-models/--no-mix-models", default=None, help="Allow GPUs of different models in one lease."),
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
    color_option,
    click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output."),
)

RECORDING_OPTIONS: Options = (
    click.option(
        "--metric",
        multiple=True,
        metavar="NAME=REGEX",
        help="Take a value of the curve from the lines that the program prints; may be given several times.",
    ),
    click.option(
        "--level",
        type=click.Choice(["off", "deterministic", "invariant"]),  # the last is refused for commands, with the reason
        metavar="off|deterministic|invariant",
        help="What is held of determinism; invariant by scenarios only.  [default: a scenario's own, else off]",
    ),
)

KEPT_OPTIONS: Options = (
    click.option(
        "--save-tensors",
        "keep",
        multiple=True,
        metavar="STEPS",
        help="Save the tensors of these steps: 3, or 3,7, or 10-12.",
    ),
    click.option(
        "--trace-ops", "op_step", type=click.IntRange(0), metavar="K", help="Record every operation of step K."
    ),
)

BREAK_OPTIONS: Options = (
    click.option(
        "--break-on",
        multiple=True,
        metavar="CONDITION",
        help="End the run where this holds: nan, inf, divergence (of replay and reproduce), or as --until; may be given"
        " several times.",
    ),
    click.option(
        "--until",
        multiple=True,
        metavar="COMPARISON",
        help="The same for a value of the curve: 'reward<0.2'; may be given several times.",
    ),
)

SCENARIO_OPTIONS: Options = (
    click.option("--size", metavar="NAME", help="One of the scenario's sizes.  [default: full to train, else smoke]"),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a dotted key of its configuration; may be given several times.",
    ),
)

trace_step_option = click.option(
    "--trace-ops",
    "has_operations",
    is_flag=True,
    help="Record every operation of step K as well, in an additional run.",
)

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run a recorded run or a bundle of somebody else, though it names code or files that no scenario here names.",
)


def all_of(options: Options) -> Callable[[Command], Command]:
    """These options as one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
