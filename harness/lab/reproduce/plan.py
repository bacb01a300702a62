"""What one step of a recorded run is run again with, checked before anything is started.

RUN, K ─▶ envelope of its steps from the nearest checkpoint to K ─▶ one run, with --op one more with operations
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.invocation import Invocation
from harness.core.redaction import REDACTED
from harness.lab.experiments.entry_call import CALL
from harness.lab.experiments.flat_config import flattened
from harness.lab.experiments.out_directory import place_of
from harness.lab.experiments.recorded_run import RecordedRun, is_recorded_run, read_recorded_run
from harness.lab.experiments.run_spec import TRAIN, Envelope
from harness.lab.experiments.scenario_files import all_scenarios
from harness.lab.experiments.scenario_spec import CHILD, check_entries, override_of
from harness.lab.experiments.step_traces import check_step
from harness.lab.experiments.trust import check_run
from harness.trace.layout import MANIFEST, log_name
from harness.trace.reader import read_trace

WITHOUT_MEANING = {"size": "size", "vary": "vary", "level": "level", "runs": "runs", "metric": "metric"}
"""Options that say again, or otherwise, what a recorded run was: by name, the argument that holds each."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step that can be run again."""

    run: RecordedRun
    step: int
    first: int
    """With which it begins: the nearest checkpoint's, or the first of the run."""
    envelope: Envelope
    """Of the steps `first` to `step`, the tensors of the last one kept."""
    is_from_checkpoint: bool = False
    """Whether it begins with a checkpoint, and not with the beginning of the run."""
    passed_over: tuple[str, ...] = ()
    """Damaged checkpoints that were nearer, each with what is wrong with it."""
    has_operations: bool = False
    timeout_s: float = inf

    @property
    def with_operations(self) -> Envelope:
        """The same once more, with the operations of the step."""
        return replace(self.envelope, op_step=self.step)


def plan_step(run: RecordedRun, arguments: Mapping[str, Any], step: int | None = None) -> StepPlan:
    """The plan of a step: the one that `arguments` name unless told otherwise; without any, all steps of the run.

    UsageError where the run has no such step, or an option cannot be used.
    """
    refuse_options(arguments)
    overrides = free_overrides(run, arguments)
    asked = arguments["step"] if step is None else step
    if asked is None:
        if arguments["op"]:
            raise UsageError("--op without --step", legal="--step K --op", remedy="name the step to look into")
        last, start = max(run.trace.steps, default=0), None
    else:
        last, start = asked, run.start_before(asked)
    check_step(run.trace, last)
    return StepPlan(
        run=run,
        step=last,
        first=min(run.trace.steps, default=last) if start is None else start,
        envelope=replace(run.envelope_to(start or 0, overrides), last_step=last, keep=(last,)),
        is_from_checkpoint=start is not None,
        passed_over=() if asked is None else run.passed_over(asked),
        has_operations=bool(arguments["op"]),
        timeout_s=arguments["timeout"] or inf,
    )


def named_run(invocation: Invocation, arguments: Mapping[str, Any], name: str) -> RecordedRun:
    """Read the recorded run in a directory, which is going to be run again.

    Raises UsageError where there is none, and where it would use what no scenario here names, without --trust.
    """
    run = read_recorded_run(place_of(invocation.cwd, name))
    check_run(run, invocation, is_trusted=bool(arguments["trust"]))
    return run


def names_recorded_run(cwd: Path, name: str | None) -> bool:
    """Whether a word names the directory of a recorded run, and no scenario."""
    return name is not None and is_recorded_run(cwd / name)


def refuse_directory(cwd: Path, name: str | None) -> None:
    """UsageError for a word that names neither a scenario nor a recorded run, but a directory."""
    if name is None or not (name.endswith("/") or (cwd / name).is_dir()) or names_recorded_run(cwd, name):
        return
    if name in {each.name for each in all_scenarios(cwd)}:
        return
    what, remedy = _directory(cwd / name, name)
    raise UsageError(
        what,
        legal="the name of a scenario, a YAML file, or the directory of a recorded run of a scenario",
        remedy=remedy,
    )


def _directory(directory: Path, name: str) -> tuple[str, str]:
    """(what a directory is that holds no recorded run, what to type instead)."""
    if not directory.is_dir():
        return f"there is no directory {name}", "rlharness scenarios shows what can be named"
    if any((directory / file).exists() for file in (MANIFEST, log_name(0))):
        manifest = read_trace(directory).manifest
        if manifest is not None and manifest.argv[: len(TRAIN)] == TRAIN:
            return f"{name} is a recorded run without its {CALL}", "record it again: rlharness train SCENARIO --out RUN"
        return (
            f"{name} is the trace of a command, and says nothing of how to run it again",
            "rlharness replay -- COMMAND runs a command again",
        )
    if runs := sorted(each.parent.name for each in directory.glob(f"run-*/{CALL}")):
        return f"{name} holds several runs", f"name one of them: {os.path.join(name, runs[0])}"
    return f"the directory {name} holds no recorded run", "rlharness train SCENARIO --out RUN records one"


def refuse_options(arguments: Mapping[str, Any]) -> None:
    """UsageError for options that say what a recorded run has said already."""
    if given := [f"--{name}" for name, argument in WITHOUT_MEANING.items() if arguments.get(argument)]:
        raise UsageError(
            f"{', '.join(given)} with a recorded run",
            legal="the run as it was recorded; --set changes sections that are free",
            remedy="name its scenario to run something else",
        )


def free_overrides(run: RecordedRun, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What --set changes of a recorded run: what must not matter, and secrets, which were not recorded."""
    values = dict(map(override_of, arguments["overrides"]))
    recorded = flattened(run.call.config)
    for key in values:
        if key.partition(".")[0] not in run.call.free and REDACTED not in recorded.get(key, ""):
            raise UsageError(
                f"--set {key}: with another value it would be another run",
                legal=f"keys of {', '.join(run.call.free)}" if run.call.free else "none: no section of it is free",
                remedy="rlharness train records another run, and rlharness diff shows where the two part",
            )
    return values


def check_machine(invocation: Invocation) -> str:
    """The path of the program that calls entries; UsageError where none could be called here."""
    if invocation.trailing:
        raise UsageError(
            "a recorded run and a command",
            legal="one of the two: the directory of a run, or a command after --",
            remedy="leave out what stands behind --",
        )
    check_entries(invocation)
    return CHILD[0]
