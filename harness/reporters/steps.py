"""What `rlharness replay RUN --step K` prints: whether the step came out as it was recorded, and what is in it."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.lab.recording import recording_json
from harness.lab.steps.judgement import Ending, OtherRun, Repeated, StepOperations
from harness.reporters.divergence import verdict_json, verdict_text
from harness.reporters.operations import VALIDITY, named, operation_json, operations_json, operations_text, value_kind
from harness.reporters.replay import output_tail
from harness.reporters.text import count, one_line
from harness.trace.command import EXIT_CODES
from harness.trace.non_finite import NonFinite
from harness.trace.ops import INF, NAN, Operation

if TYPE_CHECKING:
    from harness.lab.steps.command import StepReplay

VERSION = 1
MAX_INPUTS = 6
SHOWN = {NAN: "NaN", INF: "Inf"}
GREEN = "32"
ENDINGS = {
    Ending.WHOLE: "its root is the recorded one",
    Ending.SAME_MIDDLE: "it ends in its middle, where the recorded one does",
    Ending.GOES_ON: "the same as far as it was recorded, which is not to its end",
}


def step_text(replay: "StepReplay", *, colour: bool) -> str:
    """The verdict on the step, the operations in it, what it is to the other run's, and where everything lies."""
    lines = []
    if replay.interrupted_by:
        lines.append(f"interrupted by {replay.interrupted_by}; what was recorded is kept")
    lines += repeated_lines(replay.repeated, colour=colour)
    if replay.other is not None:
        lines += _other(replay.other, colour=colour)
    lines += [f"  note: {one_line(note)}" for note in replay.notes]
    if replay.bundle is not None:
        bundle = shlex.quote(str(replay.bundle))
        where = f"where {one_line(replay.bundle_needs)} is" if replay.bundle_needs else "on any machine"
        lines += [f"  bundle: {bundle}", f"    {where}:  rlharness replay --bundle {bundle}"]
    lines.append(f"  traces: {shlex.quote(str(replay.directory))}")
    return "\n".join(lines)


def repeated_lines(repeated: Repeated, *, colour: bool) -> Iterator[str]:
    """Whether a step came out again, and what its operations show."""
    plan = repeated.plan
    if not repeated.verdicts:
        yield f"NOTHING RECORDED  step {plan.step} of {one_line(str(plan.run.directory))}"
        yield from _failure(repeated)
        return
    different = repeated.different
    if different is None:
        yield _reproduced(repeated, colour=colour)
    else:
        yield f"A: {one_line(str(plan.run.directory))}  B: its steps {plan.first} to {plan.step} again"
        yield from verdict_text(different, colour=colour).splitlines()
        yield from _failure(repeated)
    yield f"  root {repeated.root.hex()}; {_how(repeated)}"
    for operations in repeated.operations:
        yield from _operations(operations, plan.step)


def _reproduced(repeated: Repeated, *, colour: bool) -> str:
    label = f"\x1b[{GREEN}mREPRODUCED\x1b[0m" if colour else "REPRODUCED"
    leaves = count(repeated.num_leaves, "leaf", "leaves")
    return f"{label}  step {repeated.plan.step}: {ENDINGS[repeated.ending]}: {leaves}, every bit"


def _how(repeated: Repeated) -> str:
    plan = repeated.plan
    start = f"the checkpoint of step {plan.first}" if plan.is_from_checkpoint else "the beginning of the run"
    num_before = plan.step - plan.first
    others = f"; the {count(num_before, 'step')} before it too" if num_before and repeated.is_reproduced else ""
    return f"run again from {start}{others}"


def _failure(repeated: Repeated) -> Iterator[str]:
    """Why a run is not whole, and the end of what it printed."""
    for run in repeated.runs[:1]:
        for problem in run.recording.problems:
            yield f"  {one_line(problem.what)}"
        if not run.recording.is_whole:
            yield f"  the end of its output ({run.output}):"
            yield from (f"  | {line}" for line in output_tail(run.output))


def _operations(operations: StepOperations, step: int) -> Iterator[str]:
    total = sum(operations.num_by_phase.values())
    phases = ", ".join(f"{phase} {number:,}" for phase, number in operations.num_by_phase.items())
    yield f"  operations of step {step}, rank {operations.rank}: {total:,} ({phases})"
    if operations.problem:
        yield f"    note: {one_line(operations.problem)}"
    if operations.non_finite is None:
        yield "    every number that they read and gave is finite, but for what was asked for"
    else:
        yield from (f"    {line}" for line in non_finite_lines(operations.non_finite))
    if operations.is_faithful:
        yield f"    it counts: step {step} came out the same without this record"
    else:
        yield f"    note: not valid: step {step} came out otherwise with its operations recorded"


def non_finite_lines(found: NonFinite) -> Iterator[str]:
    """Which operation made the first NaN or Inf, of what, and where that began."""
    kind = SHOWN[found.kind]
    if found.made_by is None:
        assert found.read_by is not None
        yield f"first {kind}: it was there before the step, or NumPy or compiled code wrote it"
        yield f"  read first by {named(found.read_by)}"
        return
    yield f"first {kind}: made by {named(found.made_by)}"
    yield from _inputs(found.made_by)
    if found.origin is not None:
        handed_on = f", handed on by {count(found.num_between, 'operation')}" if found.num_between else ""
        yield f"  of an Inf{handed_on} that was made of finite numbers by {named(found.origin)}"
        yield from _inputs(found.origin)
    elif found.kind == NAN and any(INF in value.not_finite for value in found.made_by.inputs):
        yield "  of an Inf that was there before the step, or that NumPy or compiled code wrote"


def _inputs(operation: Operation) -> Iterator[str]:
    """What it read: dtypes, shapes, and whether that was finite."""
    shown = [
        value_kind(value)
        + (f" with {' and '.join(SHOWN[word] for word in sorted(value.not_finite))}" * bool(value.not_finite))
        for value in operation.inputs[:MAX_INPUTS]
    ]
    if (more := len(operation.inputs) - MAX_INPUTS) > 0:
        shown.append(f"{more:,} more")
    yield f"    it read {'; '.join(shown) or 'no tensor'}"


def _other(other: OtherRun, *, colour: bool) -> Iterator[str]:
    plan = other.repeated.plan
    yield from repeated_lines(other.repeated, colour=colour)
    yield f"A: this run's step {plan.step}  B: {one_line(str(plan.run.directory))}"
    if other.verdict is None:
        yield f"  step {plan.step} was not recorded in both"
        return
    yield from verdict_text(other.verdict, colour=colour).splitlines()
    for operations in other.operations:
        yield from (line for line in operations_text(operations) if line.strip() != VALIDITY)


def step_json(replay: "StepReplay") -> dict[str, Any]:
    """The same in plain values only."""
    other = replay.other
    return {
        "version": VERSION,
        "exit_code": int(replay.exit_code),
        "interrupted_by": replay.interrupted_by,
        "directory": str(replay.directory),
        "bundle": None if replay.bundle is None else str(replay.bundle),
        "notes": list(replay.notes),
        **repeated_json(replay.repeated),
        "against": other
        and {
            **repeated_json(other.repeated),
            "verdict": other.verdict and verdict_json(other.verdict, exit_code=EXIT_CODES[other.verdict.kind]),
            "first_operations": [operations_json(each) for each in other.operations],
        },
    }


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
        "num_leaves": repeated.num_leaves,
        "root": repeated.root.hex(),
        "comparisons": [verdict_json(each, exit_code=EXIT_CODES[each.kind]) for each in repeated.verdicts],
        "operations": [_operations_json(each) for each in repeated.operations],
        "runs": [
            {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)} for run in repeated.runs
        ],
    }


def _operations_json(operations: StepOperations) -> dict[str, Any]:
    found = operations.non_finite
    return {
        "rank": operations.rank,
        "num_by_phase": dict(operations.num_by_phase),
        "problem": operations.problem,
        "is_faithful": operations.is_faithful,
        "non_finite": found
        and {
            "kind": found.kind,
            "made_by": operation_json(found.made_by),
            "read_by": operation_json(found.read_by),
            "origin": operation_json(found.origin),
            "num_between": found.num_between,
        },
    }
