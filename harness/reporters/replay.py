"""What `rlharness replay` prints: how each run ended, what the runs are to each other, what to type next."""

import os
import shlex
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from harness.lab.judgement import Comparison, Replay
from harness.lab.recording import recording_json
from harness.lab.replay_plan import ReplayPlan
from harness.lab.supervised import Run
from harness.machine.levels import OFF
from harness.reporters.divergence import STEP_ONLY, verdict_json, verdict_text
from harness.reporters.operations import VALIDITY, operations_json, operations_text
from harness.reporters.text import count, one_line
from harness.reporters.unit_output import OutputFilter
from harness.trace.command import EXIT_CODES
from harness.trace.redaction import redact_argv
from harness.trace.verdict import Kind

VERSION = 1
TAIL_LINES = 15
TAIL_BYTES = 16_384
MAX_INDENT = 24


def run_line(run: Run) -> str:
    """run 1: 40 steps in 12.3 s; with what was wrong with it, if anything was."""
    recording = run.recording
    line = f"{run.name}: {count(recording.num_steps, 'step')} in {run.duration_s:.1f} s"
    if not recording.is_whole:
        line += f", INCOMPLETE: {one_line(recording.problems[0].what)}"
    return line


def replay_text(replay: Replay, *, colour: bool, width: int | None = None, is_ascii: bool = False) -> str:
    """The verdict on each pair of runs; what was wrong with a run, and the end of what it printed.

    With pictures of the curves where `width`, in columns, is given.
    """
    plan = replay.plan
    lines = []
    if replay.interrupted_by:
        lines.append(f"interrupted by {replay.interrupted_by}; what was recorded is kept")
    for comparison in replay.comparisons:
        lines += [
            f"A: {one_line(comparison.a)}  B: {comparison.b}",
            *verdict_text(comparison.verdict, colour=colour, width=width, is_ascii=is_ascii).splitlines(),
            *_operations(comparison),
        ]
    lines += _failures([run for run in replay.runs if not run.recording.is_whole])
    lines += [f"  note: {one_line(note)}" for note in replay.notes]
    lines += [f"  note: {run.name}: {one_line(note)}" for run in replay.runs for note in run.recording.notes]
    if step := _step_to_open(replay):
        lines.append(f"  look closer: {closer_command(plan, step[0])}")
    lines.append(f"  traces: {shlex.quote(str(plan.directory))}")
    return "\n".join(lines)


def _operations(comparison: Comparison) -> Iterator[str]:
    for operations in comparison.operations:
        yield from (line for line in operations_text(operations) if line.strip() != VALIDITY)
    for note in comparison.notes:
        yield f"  note: {one_line(note)}"
    if comparison.operations and not comparison.notes:
        yield f"    it counts: step {comparison.operations[0].step} came out the same without this record"


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    """What was wrong with each run, and the end of its output; those that ended alike are told together."""
    told: dict[tuple[object, ...], str] = {}
    for run in runs:
        tail = output_tail(run.output)
        first = told.setdefault((run.recording.problems, *tail), run.name)
        if first != run.name:
            yield f"{run.name} ended as {first} did ({run.output})"
            continue
        yield f"{run.name} is not whole"
        for problem in run.recording.problems:
            yield f"  {one_line(problem.what)}"
            if problem.remedy:
                yield f"    remedy: {one_line(problem.remedy)}"
        yield from (f"  {line}" for line in ending_lines(run.output))


def ending_lines(output: Path) -> Iterator[str]:
    """The last that a run printed, and the file that holds all of it."""
    tail = output_tail(output)
    yield f"the end of its output ({output}):" if tail else f"it printed nothing ({output})"
    yield from (f"| {line}" for line in tail)


def output_tail(path: Path) -> list[str]:
    """The last lines of a file, harmless to a terminal; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    output = OutputFilter(colour=False)
    lines = (output.feed(data) + output.finish()).expandtabs(4).splitlines()[-TAIL_LINES:]
    return [f"{' ' * min(len(line) - len(line.lstrip()), MAX_INDENT)}{one_line(line)}" for line in lines]


def _step_to_open(replay: Replay) -> tuple[int, ...]:
    """The first step that differs, where its operations would tell more; none where they are told, or nothing is."""
    if replay.plan.against is not None:
        return ()
    found = [each.verdict.first for each in replay.comparisons if each.verdict.kind is Kind.DIVERGED]
    steps = [place.step for place in found if place is not None and place.what not in STEP_ONLY]
    return (min(steps),) if steps and min(steps) != replay.plan.op_step else ()


def closer_command(plan: ReplayPlan, step: int) -> str:
    """The command that records the operations of one step, of the same program under the same conditions."""
    envelope = plan.envelope
    words = ["rlharness", "replay", *plan.typed, "--step", str(step), "--op"]
    if envelope.level != OFF and not plan.typed:
        words += ["--level", envelope.level]
    words += [word for metric in envelope.metrics for word in ("--metric", metric)]
    if isfinite(plan.timeout_s):
        words += ["--timeout", f"{plan.timeout_s:g}"]
    command = shlex.join(words if plan.typed else [*words, "--", *envelope.argv])
    return command if plan.stdin == Path(os.devnull) else f"{command} < {shlex.quote(str(plan.stdin))}"


def replay_json(replay: Replay) -> dict[str, Any]:
    """The same in plain values only, without secrets."""
    plan = replay.plan
    return {
        "version": VERSION,
        "exit_code": int(replay.exit_code),
        "interrupted_by": replay.interrupted_by,
        "command": list(redact_argv(("rlharness", "replay", *plan.typed) if plan.typed else plan.envelope.argv)),
        "level": plan.envelope.level,
        "directory": str(plan.directory),
        "runs": [
            {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)} for run in replay.runs
        ],
        "comparisons": [
            {
                "a": comparison.a,
                "b": comparison.b,
                **verdict_json(comparison.verdict, exit_code=EXIT_CODES[comparison.verdict.kind]),
                "operations": [operations_json(each) for each in comparison.operations],
                "operation_notes": list(comparison.notes),
            }
            for comparison in replay.comparisons
        ],
        "notes": list(replay.notes),
    }
