"""`rlharness train`: run a scenario once in this terminal, and record it."""

from typing import Any

import click

from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say

STDERR = 2


@click.command(epilog="SCENARIO is a name listed by `rlharness scenarios`, or a YAML file.")
@click.argument("scenario")
@opt.out("run; must be new or empty.", required=True)
@opt.scenario
@opt.kept
@opt.breaks
@opt.json_flag
@click.pass_obj
def train(invocation: Invocation, /, *, scenario: str, out: str, is_json: bool, **given: Any) -> int:
    """Run a scenario once in this terminal, and record it.

    Exits with the exit code of the run, or with 12 if the recording is incomplete.
    """
    from dataclasses import asdict

    from harness.lab.experiment.preparation import place_of
    from harness.lab.experiment.recording_result import recording_json
    from harness.lab.experiment.scenario import FULL, asked_scenario, make_scenario_spec
    from harness.lab.experiment.single_run import run_here
    from harness.render.recording import end_lines, recording_lines

    options = opt.take_options(given)
    asked = asked_scenario(invocation, scenario, options, FULL)
    run_spec = make_scenario_spec(asked)
    directory, stdout = place_of(invocation.cwd, out), STDERR if is_json else None
    run = run_here(run_spec, directory, invocation.environ, stdout=stdout, **given)
    for line in recording_lines(run.recording, end_lines(run)):
        say(line)
    if is_json:
        head = {"version": 1, "exit_code": int(run.exit_code)}
        own = {"name": asked.name, "entry": asked.scenario.entry, "size": asked.size, "level": run_spec.level}
        stop, following = run.stop and asdict(run.stop), run.next_command and run.next_command.command
        recording = recording_json(run.recording)
        opt.show_json({**head, "scenario": own, "recording": recording, "stop": stop, "next": following})
    return run.exit_code
