"""Output of `replay` and `reproduce`: how each run ended, how the runs compare, and the next command."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bits.levels import DETERMINISTIC, OFF
from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.experiment.hints import NextCommand, command_line, next_command, program_command
from harness.lab.experiment.launcher import Run
from harness.lab.replay.replay import Comparison, Replay, ReplayPlan
from harness.lab.replay.resumption import ResumeKind, ResumeVerdict
from harness.lab.reproduce.reproduction import Ending, Repeated, Reproduction, StepOperations, StepPlan
from harness.process.program_output import output_tail
from harness.render.console import painted
from harness.render.divergence import verdict_text
from harness.render.operations import VALIDITY, non_finite_lines, operations_text, suspect_lines
from harness.render.recording import problem_lines
from harness.render.serialise import attributes, result_json, serialised
from harness.trace.ops import OpVerdict
from harness.trace.verdict import STEP_ONLY, Kind, Verdict

GREEN, RED, YELLOW = "32", "31", "33"
ENDINGS = {
    Ending.WHOLE: "its root digest is the recorded one",
    Ending.SAME_MIDDLE: "it stops inside the step, where the recording stops",
    Ending.GOES_ON: "it matches the recording, which stops before the end of the step",
}
MAX_HINTS = 4


def replay_text(replay: Replay, *, colour: bool) -> str:
    """Return the verdict on each pair of runs, the problems of a run, and the end of its output."""
    lines = []
    for comparison in replay.comparisons:
        lines += _pair(f"A: {one_line(comparison.a)}  B: {comparison.b}", comparison.verdict, colour)
        lines += _operations(comparison)
    for run in replay.runs:
        lines += [] if run.recording.is_complete else [f"{run.name} is incomplete", *_problems(run)]
    notes = [f"{run.name}: {note}" for run in replay.runs for note in dict.fromkeys(run.recording.notes)]
    lines += [f"  note: {one_line(note)}" for note in (*notes, *replay.notes)]
    if {each.verdict.kind for each in replay.comparisons} == {Kind.EQUAL} and replay.plan.against is None:
        num_steps = min(each.verdict.num_steps for each in replay.comparisons)
        lines.append(f"  {rare_events_line(num_steps, 1 + len(replay.comparisons))}")
    return _text(replay.interrupted_by, lines, _next_command(replay), replay.plan.directory)


def _text(interrupted_by: str, lines: list[str], command: NextCommand | str | None, directory: Path) -> str:
    """Return a result between its interruption and the next command with the directory of the traces."""
    first = [f"interrupted by {interrupted_by}; all recorded steps are kept"] if interrupted_by else []
    then = [f"  {command}"] if command else []
    return "\n".join([*first, *lines, *then, f"  traces: {shlex.quote(path_text(directory))}"])


def _pair(title: str, verdict: Verdict, colour: bool) -> list[str]:
    return [title, *verdict_text(verdict, colour=colour).splitlines()]


def _op_lines(found: Sequence[OpVerdict]) -> Iterator[str]:
    """Yield the lines on operations, without the condition of their validity, which was checked."""
    yield from (line for each in found for line in operations_text(each) if line.strip() != VALIDITY)


def _operations(comparison: Comparison) -> Iterator[str]:
    yield from _op_lines(comparison.operations)
    if comparison.nan is not None:
        yield from (f"    {line}" for line in non_finite_lines(comparison.nan))
    if comparison.suspects is not None and comparison.operations:
        yield from (f"    {line}" for line in suspect_lines(comparison.operations[0].step, comparison.suspects))
    for note in comparison.notes:
        yield f"  note: {one_line(note)}"
    if comparison.operations and not comparison.notes:
        yield f"    valid: this recording did not change step {comparison.operations[0].step}"


def _problems(run: Run) -> Iterator[str]:
    """Yield the problems of an incomplete run with their remedies, and the end of its output."""
    yield from problem_lines(run.recording)
    if not run.recording.is_complete:
        yield from (f"  {line}" for line in ending_lines(run.output))


def rare_events_line(num_steps: int, num_runs: int) -> str:
    """Return how probable it is that runs show a fault of 1 in 50 steps: 1 - (1 - p)^(steps * runs)."""
    chance = 1.0 - 0.98 ** (num_steps * num_runs)
    runs = f"{num_runs} runs of {count(num_steps, 'step')}"
    return f"a fault in 1 of 50 steps is seen by {runs} with a chance of {100 * chance:.0f} %"


def ending_lines(output: Path) -> Iterator[str]:
    """The last that a run printed, and the file that holds all of it."""
    tail, name = output_tail(output), one_line(path_text(output))
    yield f"last lines of its output ({name}):" if tail else f"it printed nothing ({name})"
    yield from (f"| {line}" for line in tail)


def _next_command(replay: Replay) -> NextCommand | str | None:
    """Return the command that inspects the first difference, else the first failed run; None if there is none."""
    plan = replay.plan
    run_spec = replace(plan.run_spec, typed=plan.typed)
    apart = [each for each in replay.comparisons if each.verdict.kind is not Kind.EQUAL]
    found = [each.verdict.first for each in apart if each.verdict.kind is Kind.DIVERGED]
    steps = [place.step for place in found if place is not None and place.what not in STEP_ONLY]
    if plan.against is None and steps and min(steps) != plan.op_step:
        return f"look closer: {program_command(run_spec, min(steps), plan.timeout_s)}"
    for run in replay.runs:
        command = next_command(plan.spec_of(run.number), run.recording)
        if command is not None and plan.op_step is None and not replay.interrupted_by:
            return command
    if not apart:
        return None
    is_first_diverged = apart[0].verdict.kind is Kind.DIVERGED
    if plan.op_step is not None and is_first_diverged and plan.run_spec.level == OFF and not plan.typed:
        words = ("rlharness", "replay", "--level", DETERMINISTIC)
        return f"test whether a level removes it: {command_line(words, run_spec, plan.timeout_s)}"
    directories = {run.name: run.recording.directory for run in replay.runs if not run.has_operations}
    sides = (path_text(directories.get(name, Path(name))) for name in (apart[0].a, apart[0].b))
    return f"see both on one page: {shlex.join(['rlharness', 'report', *sides])}"


def replay_json(replay: Replay) -> dict[str, Any]:
    """Return the same in plain values, without secrets."""
    plan = replay.plan
    return result_json(
        replay,
        command=redact_argv(("rlharness", "replay", *plan.typed) if plan.typed else plan.run_spec.argv),
        level=plan.run_spec.level,
        directory=plan.directory,
        comparisons=[
            serialised(each.verdict)
            | attributes(each, "a", "b", "operations", "nan", "suspects")
            | {"operation_notes": each.notes}
            for each in replay.comparisons
        ],
    )


# ---- a run that is interrupted and resumed


def resume_text(plan: ReplayPlan, verdict: ResumeVerdict, *, colour: bool) -> str:
    """Return the verdict in its first line; each loss with the step at which it shows; hints."""
    headline, *rest = _resume_lines(verdict)
    tone = {ResumeKind.EQUAL: GREEN, ResumeKind.LOST: RED}.get(verdict.kind, YELLOW)
    return _text("", [f"{painted(verdict.kind.value, tone, colour)}  {headline}", *rest], None, plan.directory)


def _resume_lines(verdict: ResumeVerdict) -> Iterator[str]:
    found = verdict.resumption
    if found is None:
        yield one_line(verdict.reason)
        if verdict.output:
            yield f"  last lines of its output ({one_line(path_text(verdict.runs[-1].output))}):"
            yield from (f"  | {line}" for line in verdict.output)
        return
    repeated = f", {count(verdict.num_repeated, 'step')} repeated" if verdict.num_repeated else ""
    losses = [f"step {loss.step}: {one_line(loss.sentence)}" for loss in found.losses]
    yield from losses[:1] or [f"{count(found.num_steps, 'step')} after the resume, every compared bit"]
    yield f"  resumed at step {found.step}{repeated}: {found.how}"
    yield from (f"  {loss}" for loss in losses[1:])
    yield from (f"  hint: {one_line(hint)}" for hint in found.hints[:MAX_HINTS])
    if len(found.hints) > MAX_HINTS:
        yield f"  hint: {count(len(found.hints) - MAX_HINTS, 'more variable')}"


def resume_json(plan: ReplayPlan, verdict: ResumeVerdict) -> dict[str, Any]:
    """Return the same in plain values, without secrets."""
    found = verdict.resumption
    losses = found.losses if found else ()
    return result_json(
        verdict,
        command=redact_argv(plan.run_spec.argv),
        directory=plan.directory,
        verdict=verdict.kind,
        resumed_at=found.step if found else None,
        losses=[{"code": each.code.name.lower(), "step": each.step, "sentence": each.sentence} for each in losses],
    )


# ---- a step or a run that is reproduced


def step_text(found: Reproduction, *, colour: bool) -> str:
    """Return the verdict on the step, its operations, and the directories."""
    lines = [*repeated_lines(found.repeated, colour=colour)]
    return _text(found.interrupted_by, lines, found.next_command, found.directory)


def repeated_lines(repeated: Repeated, *, colour: bool) -> Iterator[str]:
    """Yield whether a step is reproduced, and its operations."""
    plan = repeated.plan
    if not repeated.verdicts:
        yield f"NOTHING RECORDED  step {plan.step} of {one_line(path_text(plan.run.directory))}"
        yield from (line for run in repeated.runs[:1] for line in _problems(run))
        return
    different = repeated.different
    if different is None:
        steps = _steps_before(plan)
        values, before = (
            count(repeated.num_values, "value"),
            f"; and every bit of the {steps} before it" if steps else "",
        )
        ending = f"step {plan.step}: {ENDINGS[repeated.ending]}: {values}, every bit{before}"
        yield f"{painted('REPRODUCED', GREEN, colour)}  {ending}"
    else:
        title = f"A: {one_line(path_text(plan.run.directory))}  B: its {_span(plan)} repeated"
        yield from _pair(title, different, colour)
        yield from (line for run in repeated.runs[:1] for line in _problems(run))
    yield f"  {f'root {repeated.root.hex()}; ' if repeated.root else ''}{_how(repeated)}"
    for operations in repeated.operations:
        yield from _step_operations(operations, plan.step)


def _span(plan: StepPlan) -> str:
    return f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"


def _how(repeated: Repeated) -> str:
    plan = repeated.plan
    start = f"the checkpoint of step {plan.first}" if plan.is_from_checkpoint else "the beginning of the run"
    steps = _steps_before(plan) if repeated.is_reproduced else ""
    return f"repeated from {start}" + (f", with the {steps} before it" if steps else "")


def _steps_before(plan: StepPlan) -> str:
    num = plan.step - plan.first
    return f"{num:,} steps" if num > 1 else "step" if num else ""


def _step_operations(operations: StepOperations, step: int) -> Iterator[str]:
    total = sum(operations.num_by_phase.values())
    phases = ", ".join(f"{phase} {number:,}" for phase, number in operations.num_by_phase.items())
    yield f"  operations of step {step}, rank {operations.rank}: {total:,} ({phases})"
    if operations.problem:
        yield f"    note: {one_line(operations.problem)}"
    if operations.non_finite is None:
        yield "    all numbers that they read and wrote are finite"
    else:
        yield from (f"    {line}" for line in non_finite_lines(operations.non_finite))
    if operations.is_faithful:
        yield f"    valid: this recording did not change step {step}"
    else:
        yield f"    note: not valid: recording the operations changed step {step}"


def step_json(found: Reproduction) -> dict[str, Any]:
    """Return the same in plain values."""
    repeated = found.repeated
    plan = attributes(repeated.plan, "step", "first", "is_from_checkpoint")
    names = ("is_reproduced", "ending", "num_values", "root", "operations", "runs")
    more = {
        "run": repeated.plan.run.directory,
        **plan,
        **attributes(repeated, *names),
        "comparisons": repeated.verdicts,
    }
    return result_json(found, "interrupted_by", "directory", **more)
