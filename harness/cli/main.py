"""The command line: reads arguments and the environment, runs a command, prints user errors.

Each command is a module. Nothing heavy is imported to parse arguments: a command imports what it uses when it runs.
"""

import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import click

from harness import __version__
from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.redaction import NO_REDACT, redact_argv, redact_text, secrets_kept
from harness.process.exhaustion import exhaustion_of
from harness.process.invocation import Invocation
from harness.render.console import enter_job, inert, is_outermost_on_github, say

HELP: dict[str, object] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
COMMANDS = (
    *("run", "plan", "merge", "history", "doctor", "demo", "scenarios", "schema"),
    *("train", "trace", "replay", "reproduce", "diff", "report", "chaos", "gate", "bisect"),
)
"""Each in a module of its name."""
TAKE_WORDS = ("run", "plan", "trace", "replay", "reproduce", "chaos", "gate", "bisect")
"""Commands that use what follows --."""


@click.group(context_settings=HELP)
@click.version_option(__version__, prog_name="rlharness")
def cli() -> None:
    """Pack GPU tests, check that training runs are bitwise reproducible, and find the first tensor that differs."""


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

for module_name in COMMANDS:
    command: click.Command = getattr(import_module(f"harness.cli.{module_name}"), module_name)
    # Tests parse a command without the group, and click keeps its help option from then on.
    command.context_settings = {**command.context_settings, **HELP}
    command.params.append(no_redact_option)
    cli.add_command(command)


def _invocation(trailing: Sequence[str]) -> Invocation:
    """Return the state that this process inherited; raises UsageError if its working directory was deleted."""
    try:
        cwd = Path(os.getcwd())
    except FileNotFoundError:
        raise UsageError("the working directory no longer exists", remedy="change to an existing directory") from None
    environ = {**os.environ, **({"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {})}
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return Invocation(cwd, environ, tuple(trailing), is_terminal, say)


def _open_closed_files() -> None:
    """Open the standard files that a shell's `>&-` closed: the next opened file would take their place."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))


def _refuse(own: Sequence[str], error: HarnessError) -> ExitCode:
    """Print a user error, with --json also as JSON with the keys of a finished run, and return its exit code."""
    text = f"error: {error}"
    click.echo(inert(text) if is_outermost_on_github(os.environ) else text, err=True)  # it may quote a conftest file
    if "--json" in own and not error.in_record:
        with suppress(OSError):  # it is why the command is refused, or gone
            click.echo(json.dumps({"version": 1, "exit_code": int(error.exit_code), "error": str(error)}))
    return error.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors are printed, never raised."""
    _open_closed_files()
    enter_job(os.environ)
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    own, trailing = words[:at], words[at + 1 :]
    name = next((word for word in own if word in cli.commands), "")
    try:
        if trailing and name and name not in TAKE_WORDS:
            what = f"rlharness {name} takes nothing after --: {shlex.join(redact_argv(trailing))}"
            raise UsageError(what, legal=f"it after {', '.join(TAKE_WORDS)}", remedy="omit it")
        return int(cli.main(own, "rlharness", obj=_invocation(trailing), standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:  # no command at all
        error.show()
        return ExitCode.USAGE_ERROR
    except click.ClickException as error:
        remedy = " ".join(filter(None, ("rlharness", name, "--help")))
        if name in TAKE_WORDS and not isinstance(error, click.BadParameter):
            remedy += f"; {'options of pytest' if name in ('run', 'plan') else 'a program and its options'} go after --"
        return _refuse(own, UsageError(error.format_message(), remedy=remedy))
    except HarnessError as error:
        return _refuse(own, error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:  # the last stop: our own bug is the only one that shows a traceback
        if exhausted := exhaustion_of(error):
            return _refuse(own, exhausted)
        click.echo(redact_text(traceback.format_exc()), err=True, nl=False)
        click.echo("error: this is a bug in rlharness; please report it with the traceback above", err=True)
        return ExitCode.INTERNAL_ERROR
