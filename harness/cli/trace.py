"""`rlharness trace`: record an unmodified program in this terminal."""

from typing import Any

import click

from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say


@click.command(epilog="After -- comes the program:  rlharness trace --out DIR -- python train.py --seed 7")
@opt.out("trace; must be new or empty.", required=True)
@opt.recording
@opt.kept
@opt.breaks
@opt.option("--all-state", "Record large state of optimizers in every step, not only in every 8th.")
@opt.option("--sentinel N", "Compare replicas every N optimizer steps; end the program where they differ.", opt.COUNT)
@click.pass_obj
def trace(invocation: Invocation, /, *, out: str, **given: Any) -> int:
    """Record an unmodified PyTorch program in this terminal.

    Exits with the exit code of the program, or with 12 if the recording is incomplete, or with 10 if --sentinel ended
    the program because replicas differ.
    """
    from harness.lab.experiment.command_spec import make_command_spec
    from harness.lab.experiment.preparation import place_of
    from harness.lab.experiment.single_run import run_here

    run_spec = make_command_spec(invocation.trailing, opt.take_options(given))
    directory = place_of(invocation.cwd, out)
    run = run_here(run_spec, directory, invocation.environ, at_start=import_reports, **given)
    from harness.render.recording import end_lines, recording_lines

    for line in recording_lines(run.recording, end_lines(run)):
        say(line)
    return run.exit_code


def import_reports() -> None:
    """Import what reports on the program while it runs: it did not wait, and an update meanwhile changes nothing."""
    import harness.render.recording  # noqa: F401
