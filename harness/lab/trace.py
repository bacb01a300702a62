"""`rlharness trace` from arguments to exit code: orders, the program in this terminal, the finished recording."""

from collections.abc import Mapping
from typing import Any

from harness.lab.break_conditions import conditions_of_one_run
from harness.lab.foreign_program import foreign_envelope
from harness.lab.out_directory import place_of
from harness.lab.terminal_run import run_here
from harness.reporters.base import say
from harness.reporters.recording import recording_lines
from harness.reporters.stopping import stop_lines
from harness.runner.options import Invocation


def run_trace(invocation: Invocation, arguments: Mapping[str, Any]) -> int:
    """Carry out `rlharness trace`; the program's own exit code, INCOMPLETE_RECORDING where only the recording failed.

    Where a condition has ended it, that of `replay` there. UsageError for what the user can mend before anything was
    started.
    """
    envelope, conditions = foreign_envelope(invocation, arguments), conditions_of_one_run(arguments)
    run = run_here(envelope, place_of(invocation.cwd, arguments["out"]), invocation.environ, conditions)
    for line in recording_lines(run.recording, stop_lines(run)):
        say(line)
    return run.exit_code
