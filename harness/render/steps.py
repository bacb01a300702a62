"""Output of `rlharness reproduce`: whether the step is reproduced, and its operations."""

import shlex
from collections.abc import Iterator
from typing import Any

from harness.bits.text import count, one_line, path_text
from harness.lab.experiments.recording_result import recording_json
from harness.lab.reproduce.reproduction import (
    Ending,
    OtherRun,
    OtherTrace,
    Repeated,
    Reproduction,
    StepOperations,
    StepPlan,
)
from harness.process.program_output import output_tail
from harness.render.divergence import verdict_json, verdict_text
from harness.render.operations import VALIDITY, non_finite_lines, operations_text
from harness.render.replay import ending_lines
from harness.render.serialise import serialised
from harness.trace.verdict import EXIT_CODES

VERSION = 1
GREEN = "32"
ENDINGS = {
    Ending.WHOLE: "its root digest is the recorded one",
    Ending.SAME_MIDDLE: "it stops inside the step, where the recording stops",
    Ending.GOES_ON: "it matches the recording, which stops before the end of the step",
}


def step_text(found: Reproduction, *, colour: bool) -> str:
    """Return the verdict on the step, its operations, the comparison with another run, and the directories."""
    lines = []
    if found.interrupted_by:
        lines.append(f"interrupted by {found.interrupted_by}; all recorded steps are kept")
    lines += repeated_lines(found.repeated, colour=colour)
    if found.other is not None:
        lines += _other(found.other, colour=colour)
    if found.other_trace is not None:
        directory = path_text(found.other_trace.directory)
        lines.append(f"A: this run's {_span(found.repeated.plan)}  B: {one_line(directory)}")
        lines += verdict_text(found.other_trace.verdict, colour=colour).splitlines()
    lines += [f"  note: {one_line(note)}" for note in found.notes]
    if found.bundle is not None:
        bundle = shlex.quote(path_text(found.bundle))
        where, trust = "on any machine", ""
        if found.bundle_needs:
            where, trust = f"on machines that have {one_line(found.bundle_needs)}", " --trust"
        lines += [f"  bundle: {bundle}", f"    {where}:  rlharness reproduce {bundle}{trust}"]
    if (command := found.next_command) is not None:
        lines.append(f"  {command}")
    lines.append(f"  traces: {shlex.quote(path_text(found.directory))}")
    return "\n".join(lines)


def repeated_lines(repeated: Repeated, *, colour: bool) -> Iterator[str]:
    """Yield whether a step is reproduced, and its operations."""
    plan = repeated.plan
    if not repeated.verdicts:
        yield f"NOTHING RECORDED  step {plan.step} of {one_line(path_text(plan.run.directory))}"
        yield from _failure(repeated)
        return
    different = repeated.different
    if different is None:
        yield _reproduced(repeated, colour=colour)
    else:
        yield f"A: {one_line(path_text(plan.run.directory))}  B: its {_span(plan)} repeated"
        yield from verdict_text(different, colour=colour).splitlines()
        yield from _failure(repeated)
    yield f"  root {repeated.root.hex()}; {_how(repeated)}"
    if different is None and repeated.ending is Ending.SAME_MIDDLE:
        yield from (f"  {line}" for line in _error_lines(repeated))
    for operations in repeated.operations:
        yield from _operations(operations, plan.step)


def _span(plan: StepPlan) -> str:
    return f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"


def _reproduced(repeated: Repeated, *, colour: bool) -> str:
    label = f"\x1b[{GREEN}mREPRODUCED\x1b[0m" if colour else "REPRODUCED"
    values = count(repeated.num_values, "value")
    num_before = repeated.plan.step - repeated.plan.first
    steps = "step" if num_before == 1 else f"{num_before:,} steps"
    before = f"; and every bit of the {steps} before it" if num_before else ""
    return f"{label}  step {repeated.plan.step}: {ENDINGS[repeated.ending]}: {values}, every bit{before}"


def _how(repeated: Repeated) -> str:
    plan = repeated.plan
    start = f"the checkpoint of step {plan.first}" if plan.is_from_checkpoint else "the beginning of the run"
    num_before = plan.step - plan.first
    if not num_before or not repeated.is_reproduced:
        return f"repeated from {start}"
    return f"repeated from {start}, with the {'step' if num_before == 1 else f'{num_before:,} steps'} before it"


def _failure(repeated: Repeated) -> Iterator[str]:
    """Yield the problems of an incomplete run, and the last lines of its output."""
    for run in repeated.runs[:1]:
        for problem in run.recording.problems:
            yield f"  {one_line(problem.what)}"
        if not run.recording.is_complete:
            yield from (f"  {line}" for line in ending_lines(run.output))


def _error_lines(repeated: Repeated) -> list[str]:
    """Return the error with which the repeated run ended, as it printed it; none if it printed none."""
    lines = output_tail(repeated.runs[0].output) if repeated.runs else []
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return lines[begins[-1] :] if begins else []


def _operations(operations: StepOperations, step: int) -> Iterator[str]:
    total = sum(operations.num_by_phase.values())
    phases = ", ".join(f"{phase} {number:,}" for phase, number in operations.num_by_phase.items())
    yield f"  operations of step {step}, rank {operations.rank}: {total:,} ({phases})"
    if operations.problem:
        yield f"    note: {one_line(operations.problem)}"
    if operations.non_finite is None:
        yield "    all numbers that they read and wrote are finite, except those that their arguments name"
    else:
        yield from (f"    {line}" for line in non_finite_lines(operations.non_finite))
    if operations.is_faithful:
        yield f"    valid: this recording did not change step {step}"
    else:
        yield f"    note: not valid: recording the operations changed step {step}"


def _other(other: OtherRun, *, colour: bool) -> Iterator[str]:
    plan = other.repeated.plan
    yield from repeated_lines(other.repeated, colour=colour)
    yield f"A: this run's step {plan.step}  B: {one_line(path_text(plan.run.directory))}"
    if other.verdict is None:
        yield f"  step {plan.step} is not recorded in both runs"
        return
    yield from verdict_text(other.verdict, colour=colour).splitlines()
    for operations in other.operations:
        yield from (line for line in operations_text(operations) if line.strip() != VALIDITY)


def step_json(found: Reproduction) -> dict[str, Any]:
    """The same in plain values only."""
    return {
        "version": VERSION,
        "exit_code": int(found.exit_code),
        "interrupted_by": found.interrupted_by,
        "directory": str(found.directory),
        "bundle": None if found.bundle is None else str(found.bundle),
        "notes": list(found.notes),
        **repeated_json(found.repeated),
        "against": _against_json(found.other or found.other_trace),
    }


def _against_json(other: OtherRun | OtherTrace | None) -> dict[str, Any] | None:
    if other is None:
        return None
    verdict = other.verdict and verdict_json(other.verdict, exit_code=EXIT_CODES[other.verdict.kind])
    if isinstance(other, OtherTrace):
        return {"run": str(other.directory), "verdict": verdict}
    first_operations = serialised(other.operations)
    return {**repeated_json(other.repeated), "verdict": verdict, "first_operations": first_operations}


def repeated_json(repeated: Repeated) -> dict[str, Any]:
    """A step that was run again, in plain values only."""
    plan = repeated.plan
    return {
        "run": str(plan.run.directory),
        "step": plan.step,
        "first": plan.first,
        "is_from_checkpoint": plan.is_from_checkpoint,
        "is_reproduced": repeated.is_reproduced,
        "ending": repeated.ending.value,
        "num_values": repeated.num_values,
        "root": repeated.root.hex(),
        "comparisons": [verdict_json(each, exit_code=EXIT_CODES[each.kind]) for each in repeated.verdicts],
        "operations": serialised(repeated.operations),
        "runs": [
            {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)} for run in repeated.runs
        ],
    }
