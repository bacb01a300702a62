"""Directories as recorded runs leave them."""

from dataclasses import replace
from pathlib import Path

from harness.lab.experiment.recorded_run import CHECKPOINTS, RecordedRun, read_recorded_run
from harness.recording.run_spec import EntryCall
from tests.support.traces import manifest_of, steps_of, write

RESUME = {"run": "output.resume", "step": "output.resume_step"}
CALL = EntryCall("a:b", {"seed": 7, "output": {"note": "x"}}, ("output",), RESUME)


def recorded(directory: Path, call: EntryCall = CALL, checkpoints: tuple[int, ...] = ()) -> RecordedRun:
    """A run of six steps in a directory, as `rlharness train tiny` leaves one."""
    manifest = replace(manifest_of(), level="deterministic", argv=("rlharness", "train", "tiny", "--size", "smoke"))
    write(directory, steps_of(6), manifest)
    call.write(directory)
    for step in checkpoints:
        (directory / CHECKPOINTS / f"step-{step:06}").mkdir(parents=True)
    return read_recorded_run(directory)
