"""Output of `rlharness replay`: how each run ended, how the runs compare, and the next command."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bits.levels import OFF
from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.experiments.hints import level_command, next_command, program_command, report_command
from harness.lab.experiments.launcher import Run
from harness.lab.experiments.recording_result import recording_json
from harness.lab.replay.replay import Comparison, Replay
from harness.process.program_output import output_tail
from harness.render.divergence import verdict_json, verdict_text
from harness.render.operations import (
    VALIDITY,
    non_finite_lines,
    operations_text,
    suspect_lines,
)
from harness.render.rare_events import rare_events_line
from harness.render.serialise import serialised
from harness.trace.verdict import EXIT_CODES, STEP_ONLY, Kind

VERSION = 1


def run_line(run: Run) -> str:
    """run 1: 40 steps in 12.3 s; with what was wrong with it, if anything was."""
    recording = run.recording
    line = f"{run.name}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
    if not recording.is_complete:
        line += f", INCOMPLETE: {one_line(recording.problems[0].what)}"
    return line


def replay_text(replay: Replay, *, colour: bool) -> str:
    """The verdict on each pair of runs; what was wrong with a run, and the end of what it printed.

    With pictures of the curves where `width`, in columns, is given.
    """
    plan = replay.plan
    lines = []
    if replay.interrupted_by:
        lines.append(f"interrupted by {replay.interrupted_by}; all recorded steps are kept")
    for comparison in replay.comparisons:
        lines += [
            f"A: {one_line(comparison.a)}  B: {comparison.b}",
            *verdict_text(comparison.verdict, colour=colour).splitlines(),
            *_operations(comparison),
        ]
    lines += _failures([run for run in replay.runs if not run.recording.is_complete])
    lines += _recording_notes(replay.runs)
    lines += [f"  note: {one_line(note)}" for note in replay.notes]
    kinds = {each.verdict.kind for each in replay.comparisons}
    if kinds == {Kind.EQUAL} and plan.against is None:
        num_steps = min(each.verdict.num_steps for each in replay.comparisons)
        lines.append(f"  {rare_events_line(num_steps, 1 + len(replay.comparisons))}")
    if command := _next_command(replay):
        lines.append(f"  {command}")
    lines.append(f"  traces: {shlex.quote(path_text(plan.directory))}")
    return "\n".join(lines)


def _recording_notes(runs: Sequence[Run]) -> Iterator[str]:
    """Yield each note of a recording once, with the runs that have it."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run.recording.notes):
            names.setdefault(note, []).append(run.name)
    yield from (f"  note: {', '.join(of)}: {one_line(note)}" for note, of in names.items())


def _operations(comparison: Comparison) -> Iterator[str]:
    for operations in comparison.operations:
        yield from (line for line in operations_text(operations) if line.strip() != VALIDITY)
    if comparison.nan is not None:
        yield from (f"    {line}" for line in non_finite_lines(comparison.nan))
    if comparison.suspects is not None and comparison.operations:
        yield from (f"    {line}" for line in suspect_lines(comparison.operations[0].step, comparison.suspects))
    for note in comparison.notes:
        yield f"  note: {one_line(note)}"
    if comparison.operations and not comparison.notes:
        yield f"    valid: this recording did not change step {comparison.operations[0].step}"


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    """What was wrong with each run, and the end of its output; runs that ended alike are reported together."""
    told: dict[tuple[object, ...], str] = {}
    for run in runs:
        tail = output_tail(run.output)
        first = told.setdefault((run.recording.problems, *tail), run.name)
        if first != run.name:
            yield f"{run.name} ended like {first} ({one_line(path_text(run.output))})"
            continue
        yield f"{run.name} is incomplete"
        for problem in run.recording.problems:
            yield f"  {one_line(problem.what)}"
            if problem.remedy:
                yield f"    remedy: {one_line(problem.remedy)}"
        yield from (f"  {line}" for line in ending_lines(run.output))


def ending_lines(output: Path) -> Iterator[str]:
    """The last that a run printed, and the file that holds all of it."""
    tail, name = output_tail(output), one_line(path_text(output))
    yield f"last lines of its output ({name}):" if tail else f"it printed nothing ({name})"
    yield from (f"| {line}" for line in tail)


def _step_to_open(replay: Replay) -> tuple[int, ...]:
    """Return the first step that differs, if its operations are not recorded yet; empty otherwise."""
    if replay.plan.against is not None:
        return ()
    found = [each.verdict.first for each in replay.comparisons if each.verdict.kind is Kind.DIVERGED]
    steps = [place.step for place in found if place is not None and place.what not in STEP_ONLY]
    return (min(steps),) if steps and min(steps) != replay.plan.op_step else ()


def _next_command(replay: Replay) -> str:
    """Return the command that inspects the first difference, else the first failed run; empty if there is none."""
    plan = replay.plan
    run_spec = replace(plan.run_spec, typed=plan.typed)
    if step := _step_to_open(replay):
        return f"look closer: {program_command(run_spec, step[0], plan.timeout_s, plan.stdin)}"
    for run in replay.runs:
        found = next_command(plan.spec_of(run.number), run.recording)
        if found is not None and plan.op_step is None and not replay.interrupted_by:
            return str(found)
    apart = next((each for each in replay.comparisons if each.verdict.kind is not Kind.EQUAL), None)
    if apart is None:
        return ""
    if (
        plan.op_step is not None
        and apart.verdict.kind is Kind.DIVERGED
        and plan.run_spec.level == OFF
        and not plan.typed
    ):
        return str(level_command(run_spec, plan.timeout_s, plan.stdin))
    return str(report_command(*(_directory_of(replay, name) for name in (apart.a, apart.b))))


def _directory_of(replay: Replay, name: str) -> Path:
    """The directory of the trace that a comparison calls so."""
    found = [run.recording.directory for run in replay.runs if run.name == name and not run.has_operations]
    return found[0] if found else Path(name)


def replay_json(replay: Replay) -> dict[str, Any]:
    """The same in plain values only, without secrets."""
    plan = replay.plan
    return {
        "version": VERSION,
        "exit_code": int(replay.exit_code),
        "interrupted_by": replay.interrupted_by,
        "command": list(redact_argv(("rlharness", "replay", *plan.typed) if plan.typed else plan.run_spec.argv)),
        "level": plan.run_spec.level,
        "directory": str(plan.directory),
        "runs": [
            {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)} for run in replay.runs
        ],
        "comparisons": [
            {
                "a": comparison.a,
                "b": comparison.b,
                **verdict_json(comparison.verdict, exit_code=EXIT_CODES[comparison.verdict.kind]),
                "operations": serialised(comparison.operations),
                "nan": serialised(comparison.nan),
                "operation_notes": list(comparison.notes),
                "suspects": serialised(comparison.suspects or ()),
            }
            for comparison in replay.comparisons
        ],
        "notes": list(replay.notes),
    }
