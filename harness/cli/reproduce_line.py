"""The `rlharness reproduce` line for the arguments of a `rlharness replay` that names something recorded.

replay --bundle FILE --trace-ops   ─▶  rlharness reproduce FILE --trace-ops
replay RUN --interactive    ─▶  rlharness reproduce RUN --interactive
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.bits.errors import UsageError
from harness.bits.redaction import redact_argv

SUBJECT = "subject"
BUNDLE_OPTIONS = ("--bundle", "--reference-checkpoint")


def reproduce_line(reproduce: click.Command, arguments: Mapping[str, Any]) -> str:
    """Return the line that gives `reproduce` these arguments, those left out that it does not take."""
    words = ["rlharness", "reproduce"]
    for param in reproduce.params:
        value = arguments.get(str(param.name))
        if value is None or value is False or value == param.default:
            continue
        for each in value if param.multiple else (value,):
            text = f"{each:g}" if isinstance(each, float) else str(each)
            words += (
                [text] if isinstance(param, click.Argument) else [param.opts[0], *([] if value is True else [text])]
            )
    return shlex.join(redact_argv(words))


def moved_option(name: str, replay: click.Command, reproduce: click.Command, words: Sequence[str]) -> UsageError:
    """Return the error for an option of `reproduce` among `words`, the arguments of `rlharness replay`."""
    own = {param.name for param in reproduce.params}
    rest = [param for param in replay.params if isinstance(param, click.Option) and param.name not in own]
    every = click.Command("replay", params=[*reproduce.params, *rest])
    arguments = dict(every.make_context("replay", list(words), resilient_parsing=True).params)
    if arguments[SUBJECT] is None and arguments["bundle"]:
        arguments |= {SUBJECT: arguments["bundle"], "bundle": None}
    subject = arguments[SUBJECT]
    is_recorded = subject is not None and Path(subject).exists()
    line = reproduce_line(reproduce, arguments if is_recorded else {**arguments, SUBJECT: "RUN"})
    if is_recorded or subject is None:
        remedy = line
    elif name in BUNDLE_OPTIONS:
        remedy = "omit it: a scenario run that stops at a condition writes a bundle below --out"
    else:
        remedy = f"rlharness train {shlex.quote(subject)} --out RUN, then {line}"
    return UsageError(
        f"{name} is not an option of rlharness replay, which compares fresh runs",
        legal=f"rlharness reproduce RUN|BUNDLE {name}, for a recorded run",
        remedy=remedy,
    )
