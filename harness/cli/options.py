"""Options that several commands take, and the end of a command: its result as text or JSON, and its exit code."""

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import path_text
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation, wants_colour
from harness.process.run_directory import new_run_id
from harness.render.console import show

if TYPE_CHECKING:
    from harness.lab.experiment.command_spec import SpecOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SomePath(click.Path):
    """A path, not empty: an unset shell variable gives an empty text, which would mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as typed; fail for an empty one."""
        if not value:
            self.fail(f"{value!r} is not a path.", param, ctx)
        return super().convert(value, param, ctx)


PATH, INDEX, COUNT, ABOVE_0_S = SomePath(), click.IntRange(0), click.IntRange(1), click.FloatRange(0, min_open=True)
INDEX.name, COUNT.name, ABOVE_0_S.name = "whole number from 0", "whole number from 1", "number of seconds above 0"


def option(words: str, text: str, kind: click.ParamType[Any] | None = None, **settings: Any) -> Decorator:
    """Return an option with a help text. `words` are its names, then its parameter and its metavar, if it has them.

    The text names its default.

    An option with neither a metavar nor a type is a flag; one that can be turned off is None if it is not given.
    """
    names = [word for word in words.split() if word.startswith("-") or (word.isidentifier() and word.islower())]
    metavar = next((word for word in words.split() if word not in names), None)
    if metavar is None and kind is None:
        settings = {"is_flag": True, "default": None if "/" in words else False} | settings
    elif settings.get("default") not in (None, "", math.inf) and "[default" not in text:
        text += f"  [default: {settings['default']}]"
    return click.option(*names, metavar=metavar, type=kind, help=text, **settings)


def many(words: str, text: str) -> Decorator:
    """Return an option that may be given several times."""
    return option(words, f"{text} Repeatable.", multiple=True)


def all_of(*options: Decorator) -> Decorator:
    """Return options as one decorator, in their order."""
    return lambda command: functools.reduce(lambda decorated, each: each(decorated), reversed(options), command)


class Sectioned(click.Command):
    """A command whose help has its options in sections: `sections` names those of each but the last, "Others"."""

    def __init__(self, *args: Any, sections: dict[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with their options in the order of `sections`."""
        found = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        shown = {each.opts[0]: record for each in found if (record := each.get_help_record(ctx))}
        for title, names in {**self._sections, "Others": " ".join(shown)}.items():
            with formatter.section(title):
                formatter.write_dl([shown.pop(name) for name in names.split() if name in shown])


def out(text: str, **settings: Any) -> Decorator:
    """Return the option for the directory of a result."""
    return option("--out DIR", f"Directory for the {text}", PATH, **settings)


def either(example: str) -> str:
    """Return the epilog of a command that takes a scenario or a command."""
    scenario = "SCENARIO is a name listed by `rlharness scenarios`, or a YAML file."
    return f"{scenario} Without it, everything after -- is the program:  rlharness {example}"


json_flag = option("--json is_json", "Print the result as JSON on standard output.")
color = option(
    "--color",
    "When to use colours.  [default: auto, which respects NO_COLOR and FORCE_COLOR]",
    click.Choice(["auto", "always", "never"]),
    default="auto",
)
trace_step = option("--trace-ops has_operations", "With --step K: record its operations, in an additional run.")
setup = option(
    "--setup COMMAND", "Shell command that prepares each worktree; RLHARNESS_CHECKOUT names the checkout.", default=""
)
recording = all_of(
    many("--metric metrics NAME=REGEX", "Read a curve value from the lines that the program prints."),
    option(
        "--level off|deterministic|invariant",
        "Determinism level. deterministic sets the variables and torch flags that make runs repeat; invariant is"
        " for scenarios whose code is batch-invariant.  [default: the scenario's level; off for a program]",
        click.Choice(["off", "deterministic", "invariant"]),  # the last is refused for commands, with the reason
    ),
)
kept = all_of(
    many("--save-tensors keep STEPS", "Save the tensors of these steps, numbered from 0: 3, or 3,7, or 10-12."),
    option("--trace-ops op_step K", "Record every operation of step K; steps are numbered from 0.", INDEX),
)
breaks = all_of(
    many("--break-on CONDITION", "Stop the run at the first nan or inf, or after a step with a COMPARISON."),
    many("--until COMPARISON", "Stop the run after the first step whose curve satisfies it, as 'reward<0.2'."),
)
scenario = all_of(
    option("--size NAME", "For a scenario: a size that it lists.  [default: full for train, else smoke]"),
    many("--set overrides KEY=VALUE", "For a scenario: override a dotted key of its configuration."),
    recording,
)


def experiment(kind: str, limit_s: float | None = math.inf) -> Decorator:
    """Return the options of a command that starts several runs, below `.rlharness/KIND`; `limit_s` is the default."""
    timeout = option("--timeout timeout_s S", "Time limit per run.  [default: none]", ABOVE_0_S, default=limit_s)
    return all_of(timeout, out(f"traces; must be new or empty.  [default: .rlharness/{kind}]"))


def unwritable(what: str, path: Path, error: OSError) -> UsageError:
    """Return the error for a file that cannot be written."""
    text = f"{what} cannot be written to {path_text(path)}: {error.strerror}"
    return UsageError(text, remedy="choose another one, or make room or permission there")


def show_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    show(json.dumps(value))


@dataclass(frozen=True)
class Output:
    """How a command prints its result."""

    is_json: bool
    colour: bool

    def show(self, found: Any, as_text: Callable[..., str], as_json: Callable[..., Any]) -> ExitCode:
        """Print a result on standard output, and return its exit code."""
        if self.is_json:
            show_json(as_json(found))
        else:
            show(as_text(found, colour=self.colour))
        return ExitCode(found.exit_code)


def output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --color to a command, which takes the invocation and an Output."""

    @json_flag
    @color
    @click.pass_obj
    @functools.wraps(command)
    def with_output(invocation: Invocation, /, *, is_json: bool, color: str, **given: Any) -> Any:
        return command(invocation, Output(is_json, wants_colour(color, invocation)), **given)

    return with_output


def take_options(given: dict[str, Any]) -> "SpecOptions":
    """Take the options of a scenario and its recording out of those that were given."""
    from harness.lab.experiment.command_spec import SpecOptions

    names = [each.name for each in fields(SpecOptions)]
    return SpecOptions(**{name: value for name in names if (value := given.pop(name, None)) is not None})


def new_id() -> str:
    """Return the id of the runs of a command, which sorts by time."""
    return new_run_id(SystemClock().wall())
