"""Text and JSON of what a resume has lost."""

import shlex
from collections.abc import Iterator
from typing import Any

from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.experiments.launcher import Run
from harness.lab.experiments.recording_result import recording_json
from harness.lab.replay.replay import ReplayPlan
from harness.lab.replay.resumption import ResumeKind, ResumeVerdict

VERSION = 1
MAX_HINTS = 4


def resumed_run_line(run: Run, kind: str) -> str:
    """run 2, interrupted: 7 steps in 3.2 s."""
    return f"run {run.number}, {kind}: {count(run.recording.num_steps, 'step')} in {run.duration_s:.1f} s"


def resume_text(plan: ReplayPlan, verdict: ResumeVerdict, *, colour: bool) -> str:
    """The verdict in its first line; each loss with the step at which it shows; hints."""
    headline, *rest = _lines(verdict)
    label = verdict.kind.value
    tone = {ResumeKind.EQUAL: "32", ResumeKind.LOST: "31"}.get(verdict.kind, "33")
    painted = f"\x1b[{tone}m{label}\x1b[0m" if colour else label
    return "\n".join([f"{painted}  {headline}", *rest, f"  traces: {shlex.quote(path_text(plan.directory))}"])


def _lines(verdict: ResumeVerdict) -> Iterator[str]:
    found = verdict.resumption
    if found is None:
        yield one_line(verdict.reason)
        if verdict.output:
            yield f"  last lines of its output ({one_line(path_text(verdict.runs[-1].output))}):"
            yield from (f"  | {line}" for line in verdict.output)
        return
    repeated = f", {count(verdict.num_repeated, 'step')} repeated" if verdict.num_repeated else ""
    resumed = f"resumed at step {found.step}{repeated}: {found.how}"
    if not found.losses:
        yield f"{count(found.num_steps, 'step')} after the resume, every compared bit"
    else:
        first = found.losses[0]
        yield f"step {first.step}: {one_line(first.sentence)}"
    yield f"  {resumed}"
    yield from (f"  step {loss.step}: {one_line(loss.sentence)}" for loss in found.losses[1:])
    yield from (f"  hint: {one_line(hint)}" for hint in found.hints[:MAX_HINTS])
    if len(found.hints) > MAX_HINTS:
        yield f"  hint: {count(len(found.hints) - MAX_HINTS, 'more variable')}"


def resume_json(plan: ReplayPlan, verdict: ResumeVerdict) -> dict[str, Any]:
    """The same in plain values only, without secrets."""
    found = verdict.resumption
    return {
        "version": VERSION,
        "exit_code": int(verdict.exit_code),
        "interrupted_by": verdict.interrupted_by,
        "command": list(redact_argv(plan.run_spec.argv)),
        "directory": str(plan.directory),
        "verdict": verdict.kind.value,
        "reason": verdict.reason,
        "output": list(verdict.output),
        "resumed_at": found.step if found else None,
        "num_steps": found.num_steps if found else 0,
        "losses": [
            {"code": loss.code.name.lower(), "step": loss.step, "sentence": loss.sentence}
            for loss in (found.losses if found else ())
        ],
        "hints": list(found.hints) if found else [],
        "runs": [
            {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)} for run in verdict.runs
        ],
    }
