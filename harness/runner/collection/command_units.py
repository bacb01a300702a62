"""Units that are shell commands: what they are called, how one runs, and its outcome from the exit code alone.

A command has a report of one test, which rlharness writes itself: so a report, the history and a retry treat it as a
file with one test, whose node id is the path of the unit.
"""

import fnmatch
import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.command import CommandRule
from harness.core.errors import UsageError
from harness.core.regular_file import open_for_writing
from harness.core.test_outcomes import TestOutcome
from harness.process.supervisor_client import ProcessEnd
from harness.runner.collection.collect import Collected
from harness.runner.outcomes import Reported, classify_outcome, signal_name
from harness.runner.units import NeedSource, Outcome, Unit

PREFIX = "command:"
SHELL = ("/bin/sh", "-c")
SHELLS_SIGNAL = 128
"""What a shell adds to the number of the signal that ended its last program."""
UNSTARTED = Reported(pytest_exit=None, running="", num_ended=0, collect_error="")


def select_commands(rules: Sequence[CommandRule], patterns: Sequence[str], *, has_paths: bool) -> list[CommandRule]:
    """Return the commands that a command line asks for: those that it names, else all unless it has paths.

    Raises UsageError for a name or glob that matches no command.
    """
    if not patterns:
        return [] if has_paths else list(rules)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(rule.name, pattern) for rule in rules):
            raise UsageError(
                f"--command {pattern} matches no command",
                legal=", ".join(rule.name for rule in rules) or "none: [tool.rlharness.commands] is empty",
                remedy="name one of these, or use a glob",
            )
    return [rule for rule in rules if any(fnmatch.fnmatchcase(rule.name, pattern) for pattern in patterns)]


def command_units(rules: Sequence[CommandRule]) -> tuple[Unit, ...]:
    """Return a unit for each command."""
    return tuple(
        Unit(PREFIX + rule.name, rule.need, NeedSource.TABLE, rule.timeout_s, command=rule.command) for rule in rules
    )


def with_commands(collected: Collected, rules: Sequence[CommandRule]) -> Collected:
    """Return the collection with the commands after its files."""
    return replace(collected, units=(*collected.units, *command_units(rules)))


def classify_command(unit: Unit, end: ProcessEnd, timeout_s: float) -> tuple[Outcome, str]:
    """Return the outcome of a command, and one line with the reason (empty if it passed).

    A shell exits with 128 + N if signal N ended its program; such a code is a crash.
    """
    if end.reason == "timeout":
        return Outcome.TIMED_OUT, f"the command ran longer than {timeout_s:g} s"
    if end.unkillable or end.reason or end.signal is not None:
        return classify_outcome(end, UNSTARTED, timeout_s)
    code = end.exit_code
    if code == 0:
        return Outcome.PASSED, ""
    if is_skip(unit, end):
        return Outcome.PASSED, ""
    if code is not None and code - SHELLS_SIGNAL in set(signal.Signals):
        return Outcome.CRASHED, f"{signal_name(code - SHELLS_SIGNAL)} (exit code {code})"
    return Outcome.FAILED, f"exit code {code}"


def is_skip(unit: Unit, end: ProcessEnd) -> bool:
    """Return whether the command has ended by itself with the exit code that means "skipped"."""
    ended_itself = not end.reason and end.signal is None and not end.unkillable
    return (
        ended_itself
        and unit.command is not None
        and unit.command.skip_code is not None
        and end.exit_code == unit.command.skip_code
    )


def write_start(report: Path, unit: Unit) -> None:
    """Write that the one test of the command has begun; raises OSError where the file cannot be written."""
    _write(
        report,
        {"k": "hello", "version": 1, "pid": 0},
        {"k": "collected", "need": unit.need.to_json(), "nodeids": [unit.path]},
        {"k": "start", "id": unit.path, "timeout_s": None},
    )


def write_end(report: Path, unit: Unit, end: ProcessEnd, timeout_s: float) -> None:
    """Write how the one test of the command has ended, unless rlharness or a signal ended it."""
    outcome, reason = classify_command(unit, end, timeout_s)
    if outcome not in (Outcome.PASSED, Outcome.FAILED):
        return
    result = TestOutcome.FAILED if outcome is Outcome.FAILED else TestOutcome.PASSED
    if is_skip(unit, end):
        result, reason = TestOutcome.SKIPPED, f"exit code {end.exit_code}"
    record = {"k": "end", "id": unit.path, "outcome": result.value, "duration_s": end.duration_s, "reason": reason}
    _write(report, record, {"k": "finish", "exit": int(outcome is Outcome.FAILED)})


def _write(report: Path, *records: dict[str, Any]) -> None:
    with open_for_writing(report, appends=True) as file:  # the command may have put anything in its place
        file.write("".join(f"{json.dumps(record)}\n" for record in records).encode())
