"""`rlharness trace` from arguments to exit code: orders, the program in this terminal, the finished recording."""

from collections.abc import Mapping
from typing import Any

from harness.cli.commands.scenario_arguments import recording_options
from harness.lab.experiments.command_spec import make_command_spec
from harness.lab.experiments.preparation import place_of
from harness.lab.experiments.single_run import conditions_of_one_run, run_here
from harness.process.invocation import Invocation


def run_trace(invocation: Invocation, arguments: Mapping[str, Any]) -> int:
    """Carry out `rlharness trace` and return the exit code of the program.

    Returns INCOMPLETE_RECORDING if only the recording failed, and the exit code of `replay` if a condition stopped the
    program, and DIVERGED if the sentinel ended it. Raises UsageError for a user error before anything is started.
    """
    run_spec = make_command_spec(invocation.trailing, recording_options(arguments))
    conditions = conditions_of_one_run(arguments["break_on"], arguments["until"])
    directory = place_of(invocation.cwd, arguments["out"])
    run = run_here(run_spec, directory, invocation.environ, conditions, at_start=_import_reports)
    from harness.render.console import say
    from harness.render.recording import end_lines, recording_lines

    for line in recording_lines(run.recording, end_lines(run)):
        say(line)
    return run.exit_code


def _import_reports() -> None:
    """Import what reports on the program while it runs: it did not wait, and an update meanwhile changes nothing."""
    import harness.render.console
    import harness.render.recording  # noqa: F401
