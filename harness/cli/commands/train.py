"""`rlharness train` from arguments to exit code: one run of a scenario, recorded, in this terminal."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.cli.commands.scenario_arguments import scenario_options
from harness.lab.experiments.preparation import place_of
from harness.lab.experiments.recording_result import recording_json
from harness.lab.experiments.scenario import FULL, Asked, asked_scenario, make_scenario_spec
from harness.lab.experiments.single_run import conditions_of_one_run, run_here
from harness.process.invocation import Invocation
from harness.render.console import say, show
from harness.render.recording import end_lines, recording_lines

VERSION = 1
STDERR = 2


def run_train(invocation: Invocation, arguments: Mapping[str, Any]) -> int:
    """Carry out `rlharness train` and return the exit code of the run.

    Returns INCOMPLETE_RECORDING if only the recording failed. Raises UsageError for a user error, also one that the
    entry reports before its first step; nothing is left then.
    """
    options = scenario_options(arguments)
    asked = asked_scenario(invocation, arguments["scenario"], options, FULL)
    run_spec = make_scenario_spec(asked, options.recording)
    conditions = conditions_of_one_run(arguments["break_on"], arguments["until"])
    directory = place_of(invocation.cwd, arguments["out"])
    stdout = STDERR if arguments["json"] else None
    run = run_here(run_spec, directory, invocation.environ, conditions, stdout=stdout)
    for line in recording_lines(run.recording, end_lines(run)):
        say(line)
    if arguments["json"]:
        told = {"scenario": _scenario_json(asked, run_spec.level), "recording": recording_json(run.recording)}
        told["stop"] = run.stop and asdict(run.stop)
        command = run.next_command
        told["next"] = command and command.command
        show(json.dumps({"version": VERSION, "exit_code": int(run.exit_code), **told}))
    return run.exit_code


def _scenario_json(asked: Asked, level: str) -> dict[str, str | None]:
    return {"name": asked.name, "entry": asked.scenario.entry, "size": asked.size, "level": level}
