"""Errors of the command-line parser in the form of every other error: the value, what is legal, a remedy.

Invalid value for '--step': 'abc' is not ...   ─▶   --step 'abc'
                                                      legal:  a whole number, 0 or more
                                                      remedy: rlharness replay --help
"""

import difflib
import os
import re
import shlex
from collections.abc import Sequence

import click

from harness.bits.errors import UsageError
from harness.cli.renamed import OPTIONS, VALUES
from harness.cli.reproduce_line import moved_option

MAX_NEAR = 3
_OWN = ("--help", "--version")
"""Options of rlharness itself."""
BEHIND = {
    "run": ["[-- PYTEST_ARGS]"],
    "plan": ["[-- PYTEST_ARGS]"],
    "trace": ["-- COMMAND"],
    "replay": ["[-- COMMAND]"],
    "chaos": ["[-- COMMAND]"],
}
"""Arguments after `--`, which the parser does not see."""
_EXTRA = re.compile(r"extra arguments? \((.*)\)")


def rejection_of(error: click.ClickException, cli: click.Group, words: list[str]) -> UsageError:
    """Return a parser error as a UsageError; `words` are the arguments of `rlharness`."""
    command = cli.commands.get(words[0]) if words else None
    if command is None:
        word = words[0] if words else ""
        kind, known = ("an option", _OWN) if word.startswith("-") else ("a command", tuple(cli.commands))
        return _unknown(f"{word} is not {kind}", word, known, "rlharness --help")
    called = f"rlharness {command.name}"
    remedy = f"{called} --help"
    match error:
        case click.MissingParameter(param=click.Parameter() as param):
            shows = "; rlharness scenarios lists the scenarios" if param.name == "scenario" else ""
            what = f"{called}: {' '.join(_typed(param))} is missing"
            return UsageError(what, legal=_usage(command), remedy=f"{remedy}{shows}")
        case click.BadParameter(param=click.Parameter() as param):
            value = error.message.rpartition(" is not ")[0] or error.message
            if new := VALUES.get(param.opts[0], {}).get(value.strip("'")):
                remedy = f"{param.opts[0]} {new}, its present name"
            return UsageError(f"{param.opts[0]} {value}", legal=legal_values(param.type), remedy=remedy)
        case click.NoSuchOption():
            name = error.option_name
            if (new := OPTIONS.get(name)) in _options(command):
                return UsageError(f"{name} is now called {new}", legal=new, remedy=remedy)
            reproduce = cli.commands["reproduce"]
            if command.name == "replay" and name in _options(reproduce):
                return moved_option(name, command, reproduce, words[1:])
            of_pytest = ""
            if command.name in ("run", "plan"):
                of_pytest = f"; for an option of pytest: {shlex.join(_after_dashes(['rlharness', *words], name))}"
            return _unknown(f"{name} is not an option of {called}", name, _options(command), remedy + of_pytest)
        case click.BadOptionUsage():
            option = next((each for each in command.params if error.option_name in (each.name, *each.opts)), None)
            name, *values = _typed(option) if option is not None else [error.option_name]
            what = f"{name} needs a value" if values else f"{name} takes no value"
            return UsageError(what, legal=" ".join([name, *values]), remedy=remedy)
    more = _EXTRA.search(error.message)
    what = f"{called} got more arguments than it takes: {more[1]}" if more else f"{called}: {error.format_message()}"
    return UsageError(what, legal=_usage(command), remedy=remedy)


def legal_values(kind: object) -> str:
    """Return the legal values of an option of this type."""
    match kind:
        case click.Choice():
            return ", ".join(map(str, kind.choices))
        case click.IntRange() | click.FloatRange():
            number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
            if kind.max is not None:
                return f"{number} from {kind.min} to {kind.max}"
            return f"{number} above {kind.min}" if kind.min_open else f"{number}, {kind.min} or more"
        case click.Path():
            return "a path"
    return "the values listed in its help"


def _unknown(what: str, name: str, known: Sequence[str], remedy: str) -> UsageError:
    bare = {each.lstrip("-"): each for each in known}  # the hyphens make short names alike
    near = [bare[each] for each in difflib.get_close_matches(name.lstrip("-"), bare, n=MAX_NEAR)]
    question = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(what, legal=", ".join(known), remedy=f"{question}{remedy}")


def _after_dashes(words: Sequence[str], name: str) -> list[str]:
    """Return the command with an option, and a value that follows it, after `--`; a path is taken for no value."""
    at = next((number for number, word in enumerate(words) if word.partition("=")[0].startswith(name)), len(words))
    moved = list(words[at : at + 1]) or [name]
    if moved == [name] and not any(each.startswith("-") or os.path.lexists(each) for each in words[at + 1 : at + 2]):
        moved += words[at + 1 : at + 2]
    return [*words[:at], *words[at + len(moved) :], "--", *moved]


def _options(command: click.Command) -> list[str]:
    """Return the long names of the options of a command, and the short ones of those without."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    names = [[*option.opts, *option.secondary_opts] for option in options]
    return [each for one in names for each in ([name for name in one if name.startswith("--")] or one)]


def _usage(command: click.Command) -> str:
    """Return the usage line of a command, without its optional options."""
    needed = [each for each in command.params if isinstance(each, click.Argument) or each.required]
    words = [word for each in needed for word in _typed(each)]
    return " ".join(["rlharness", str(command.name), *words, "[OPTIONS]", *BEHIND.get(str(command.name), ())])


def _typed(param: click.Parameter) -> list[str]:
    """Return an option's name and the word for its value, if any; for an argument this word alone."""
    value = param.metavar or str(param.name).upper()
    if isinstance(param, click.Option):
        return [param.opts[0]] if param.is_flag else [param.opts[0], value]
    return [value]
