"""Replays for tests: runs whose traces are written by hand, none of which was started."""

from dataclasses import replace
from pathlib import Path

from harness.lab.experiment.launcher import OUTPUT, Run
from harness.lab.experiment.preparation import OutDirectory
from harness.lab.experiment.recording_result import Problem, Recording
from harness.lab.replay.replay import ReplayPlan
from harness.recording.operations import OpLog
from harness.recording.run_spec import Report, RunSpec
from tests.support.traces import Change, steps_of, write

OP = {
    "k": "op",
    "phase": "backward",
    "op": "aten.index_put.default",
    "at": "train.py:41 forward",
    "args": "True",
    "in": ["f32 8 xxh3_128 aa"],
    "from": [-1],
}


def plan_of(directory: Path, *, num_runs: int = 2, op_step: int | None = None, level: str = "off") -> ReplayPlan:
    run_spec = RunSpec(("python", "train.py", "--lr", "1e-3"), level=level)
    return ReplayPlan((run_spec,), OutDirectory(directory), num_runs, op_step=op_step)


def run_of(
    directory: Path,
    number: int,
    change: Change = lambda step, recorded_value: recorded_value,
    *,
    output: str = "",
    problem: str = "",
    op: str = "",
) -> Run:
    """A run of three steps; with `op` the digest of the one operation of step 1 that it has recorded."""
    place = directory / f"run-{number}{'-op' if op else ''}"
    write(place, steps_of(3, change), complete=not problem)
    (place / OUTPUT).write_text(output, encoding="utf-8")
    if op:
        log = OpLog(place, rank=0, step=1, say=print)
        log.append({"i": 0, **OP, "out": [f"f32 8 xxh3_128 {op}"]})
        log.close()
    recording = Recording(place, 1 if problem else 0, 3, (0,), 1200)
    if problem:
        recording = replace(recording, problems=(Problem(problem, "a remedy"),))
    return Run(number, bool(op), recording, 12.34)


def with_reports(run: Run, *reports: Report) -> Run:
    return replace(run, recording=replace(run.recording, reports=reports))


def report(pid: int, string_hash: str, **level_env: str | None) -> Report:
    return Report(pid, ("train.py",), "python", 0, 3, True, "", level_env, string_hash)
