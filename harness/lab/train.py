"""`rlharness train` from arguments to exit code: one run of a scenario, recorded, in this terminal."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from harness.clock import SystemClock
from harness.errors import UsageError
from harness.exit_codes import ExitCode
from harness.lab.entry_call import INTERRUPTED, read_refusal
from harness.lab.envelope import abandon, notes_on, prepare
from harness.lab.recording import await_recorders, finish, recording_json
from harness.lab.scenario import FULL
from harness.lab.scenario_envelope import Asked, asked_scenario, scenario_envelope
from harness.reporters.base import say, show
from harness.reporters.recording import recording_lines
from harness.runner.options import Invocation
from harness.runner.supervisor.foreground import run_in_foreground

VERSION = 1
STDERR = 2


def run_train(invocation: Invocation, arguments: Mapping[str, Any]) -> int:
    """Carry out `rlharness train`; the exit code of the entry's process, INCOMPLETE_RECORDING where only that failed.

    UsageError for what the user can mend, which the entry may say too, before its first step: nothing is left then.
    """
    asked = asked_scenario(invocation, arguments, FULL)
    envelope = scenario_envelope(asked, arguments)
    prepared = prepare(envelope, invocation.cwd / arguments["out"], invocation.environ)
    started: list[int] = []
    try:
        stdout = STDERR if arguments["json"] else None
        status = run_in_foreground(envelope.argv, prepared.env, started.append, stdout=stdout)
    except UsageError:
        abandon(prepared)
        raise
    if refusal := read_refusal(prepared.directory):
        abandon(prepared)
        raise UsageError(refusal.what, legal=refusal.legal, remedy=refusal.remedy)
    program_code = status if status >= 0 else 128 - status
    with suppress(KeyboardInterrupt):  # somebody does not want to wait
        await_recorders(prepared.directory, SystemClock())
    notes = notes_on(invocation.environ)
    recording = finish(prepared.directory, envelope, program_code, leader_pid=started[0], notes=notes)
    for line in recording_lines(recording):
        say(line)
    code = exit_code(program_code, is_whole=recording.is_whole)
    if arguments["json"]:
        told = {"scenario": _scenario_json(asked, envelope.level), "recording": recording_json(recording)}
        show(json.dumps({"version": VERSION, "exit_code": int(code), **told}))
    return code


def exit_code(program_code: int, *, is_whole: bool) -> int:
    """That of the command, from that of the process."""
    if program_code == INTERRUPTED:
        return ExitCode.INTERRUPTED
    return program_code or (ExitCode.OK if is_whole else ExitCode.INCOMPLETE_RECORDING)


def _scenario_json(asked: Asked, level: str) -> dict[str, str]:
    return {"name": asked.name, "entry": asked.scenario.entry, "size": asked.size, "level": level}
