"""The command line: reads arguments and the environment, hands frozen options to the rooms, prints user errors.

Nothing heavy is imported to parse arguments: each command, in `commands`, imports its room when it runs.
"""

import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from harness import __version__
from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.redaction import redact_argv, redact_text
from harness.cli import demonstration, finding, recording, testing
from harness.cli.options import no_redact_option
from harness.cli.usage import rejection_of
from harness.process.exhaustion import exhaustion_of
from harness.process.invocation import Invocation
from harness.render.console import enter_job, inert, is_outermost_on_github, say

HELP: dict[str, object] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=HELP)
@click.version_option(__version__, prog_name="rlharness")
def cli() -> None:
    """Pack GPU tests, check that training runs are bitwise reproducible, and find the first tensor that differs."""


for room in (testing, recording, finding, demonstration):
    for command in vars(room).values():
        if isinstance(command, click.Command):
            # The demo and tests parse a command without the group, and click keeps its help option from then on.
            command.context_settings = {**command.context_settings, **HELP}
            command.params.append(no_redact_option)
            cli.add_command(command)


TAKE_WORDS = ("run", "plan", "trace", "replay", "reproduce", "chaos", "gate", "bisect")
"""Commands that use what follows --."""


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


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


def _answer_in_json(own: Sequence[str], code: ExitCode, error: str) -> None:
    """Print the JSON of --json for a command that did not start, with the keys of a finished run."""
    if "--json" in own:
        with suppress(OSError):  # it is why the command is refused, or gone
            click.echo(json.dumps({"version": 1, "exit_code": int(code), "error": error}))


def _refuse(own: Sequence[str], error: HarnessError) -> ExitCode:
    """Print a user error and return its exit code."""
    text = f"error: {error}"
    click.echo(inert(text) if is_outermost_on_github(os.environ) else text, err=True)  # it may quote a conftest file
    if not error.in_record:
        _answer_in_json(own, error.exit_code, str(error))
    return error.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors are printed, never raised."""
    _open_closed_files()
    enter_job(os.environ)
    own, trailing = _split(list(sys.argv[1:] if argv is None else argv))
    try:
        invocation = _invocation(trailing)
        name = next((word for word in own if word in cli.commands), "")
        if trailing and name and name not in TAKE_WORDS:
            raise UsageError(
                f"rlharness {name} takes nothing after --: {shlex.join(redact_argv(trailing))}",
                legal=f"{', '.join(TAKE_WORDS)} take a command or arguments after --",
                remedy="omit it, or choose the command that runs it",
            )
        return int(cli.main(args=own, prog_name="rlharness", obj=invocation, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:  # no command at all
        error.show()
        return ExitCode.USAGE_ERROR
    except click.ClickException as error:
        return _refuse(own, rejection_of(error, cli, own))
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
