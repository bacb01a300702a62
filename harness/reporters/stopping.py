"""What `rlharness replay` prints of a run that was to end where a condition holds: where it has, or that none did."""

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.inject.conditions import Stop
from harness.lab.recording import recording_json
from harness.reporters.replay import output_tail
from harness.reporters.text import count, one_line

if TYPE_CHECKING:
    from harness.lab.stopping import Stopped

VERSION = 1
MAX_CHARS = 200
YELLOW, GREEN = "33", "32"


def stopped_text(stopped: "Stopped", *, colour: bool) -> str:
    """Where the run ended and why, its bundle, and what to type next."""
    lines = []
    recording = stopped.run.recording
    if stopped.interrupted_by:
        lines.append(f"interrupted by {stopped.interrupted_by}; what was recorded is kept")
    if stopped.stop is not None:
        lines.append(f"{_label('STOPPED', YELLOW, colour)}  {where(stopped.stop)}")
    elif not stopped.interrupted_by:
        texts = ", ".join(map(str, stopped.plan.conditions))
        lines.append(f"{_label('NOT MET', GREEN, colour)}  {texts}: not in {count(recording.num_steps, 'step')}")
    if stopped.stop is None and not recording.is_whole:
        lines += [f"  {one_line(problem.what)}" for problem in recording.problems]
        lines.append(f"  the end of its output ({stopped.run.output}):")
        lines += [f"  | {line}" for line in output_tail(stopped.run.output)]
    if stopped.bundle is not None:
        bundle = shlex.quote(str(stopped.bundle))
        lines += [f"  bundle: {bundle}", f"  look closer: rlharness replay --bundle {bundle} --op"]
    lines += [f"  note: {one_line(note)}" for note in stopped.notes]
    lines.append(f"  traces: {shlex.quote(str(stopped.directory))}")
    return "\n".join(lines)


def where(stop: Stop) -> str:
    """nan at step 7, backward layers.0.weight, element [3, 1]: nan."""
    rank = f", rank {stop.rank}" if stop.rank else ""
    if not stop.name:
        return f"{stop.condition} at step {stop.step}{rank}: {one_line(stop.value, MAX_CHARS)}"
    if not stop.phase:
        return f"{stop.condition} after step {stop.step}{rank}: {one_line(stop.name, MAX_CHARS)} is {stop.value}"
    occurrence = f" #{stop.occurrence}" if stop.occurrence else ""
    element = f", element {list(stop.element)}" if stop.element else ""
    value = f": {one_line(stop.value, MAX_CHARS)}" if stop.value else ""
    leaf = f"{one_line(stop.phase, MAX_CHARS)} {one_line(stop.name, MAX_CHARS)}{occurrence}"
    return f"{stop.condition} at step {stop.step}{rank}, {leaf}{element}{value}"


def _label(text: str, tone: str, colour: bool) -> str:
    return f"\x1b[{tone}m{text}\x1b[0m" if colour else text


def stopped_json(stopped: "Stopped") -> dict[str, Any]:
    """The same in plain values only."""
    run = stopped.run
    return {
        "version": VERSION,
        "exit_code": int(stopped.exit_code),
        "interrupted_by": stopped.interrupted_by,
        "conditions": list(map(str, stopped.plan.conditions)),
        "stop": stopped.stop and asdict(stopped.stop),
        "bundle": None if stopped.bundle is None else str(stopped.bundle),
        "directory": str(stopped.directory),
        "run": {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)},
        "notes": list(stopped.notes),
    }
