"""Output of `replay` and `reproduce` for a run with stop conditions: where one held, or that none did."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from harness.bits.text import count, one_line, path_text
from harness.lab.experiments.recording_result import recording_json
from harness.lab.experiments.single_run import Stopped, TerminalRun
from harness.recording.conditions import Condition, Stop
from harness.render.replay import ending_lines

VERSION = 1
MAX_CHARS = 200
ONE_RUN = "with these conditions rlharness makes a single run, and compares it with nothing"
"""Note on a run whose exit code 0 says nothing about reproducibility."""
YELLOW, GREEN = "33", "32"


def stopped_text(stopped: Stopped, *, colour: bool) -> str:
    """Where the run ended and why, its bundle, and what to type next."""
    lines = []
    recording = stopped.run.recording
    if stopped.interrupted_by:
        lines.append(f"interrupted by {stopped.interrupted_by}; all recorded steps are kept")
    if stopped.stop is not None or not stopped.interrupted_by:
        lines.append(condition_line(stopped.plan.conditions, stopped.stop, recording.num_steps, colour=colour))
    if stopped.stop is None and not recording.is_complete:
        lines += [f"  {one_line(problem.what)}" for problem in recording.problems]
        lines += [f"  {line}" for line in ending_lines(stopped.run.output)]
    if stopped.bundle is not None:
        lines.append(f"  bundle: {shlex.quote(path_text(stopped.bundle))}")
    if (command := stopped.next_command) is not None:
        lines.append(f"  {command}")
    notes = [*stopped.notes] if stopped.is_compared else [ONE_RUN, *stopped.notes]
    lines += [f"  note: {one_line(note)}" for note in notes]
    lines.append(f"  traces: {shlex.quote(path_text(stopped.directory))}")
    return "\n".join(lines)


def stop_lines(run: TerminalRun) -> Iterator[str]:
    """Yield where a condition stopped a run in a terminal, and the next command."""
    if run.conditions:
        yield condition_line(run.conditions, run.stop, run.recording.num_steps, colour=False)
    if (command := run.next_command) is not None:
        yield f"  {command}"


def condition_line(conditions: Sequence[Condition], stop: Stop | None, num_steps: int, *, colour: bool) -> str:
    """Return the line that names the condition that held, or those that did not."""
    if stop is not None:
        return f"{_label('STOPPED', YELLOW, colour)}  {where(stop)}"
    return f"{_label('NOT MET', GREEN, colour)}  {', '.join(map(str, conditions))} in {count(num_steps, 'step')}"


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
    recorded_value = f"{one_line(stop.phase, MAX_CHARS)} {one_line(stop.name, MAX_CHARS)}{occurrence}"
    return f"{stop.condition} at step {stop.step}{rank}, {recorded_value}{element}{value}"


def _label(text: str, tone: str, colour: bool) -> str:
    return f"\x1b[{tone}m{text}\x1b[0m" if colour else text


def stopped_json(stopped: Stopped) -> dict[str, Any]:
    """The same in plain values only."""
    run = stopped.run
    return {
        "version": VERSION,
        "exit_code": int(stopped.exit_code),
        "interrupted_by": stopped.interrupted_by,
        "conditions": list(map(str, stopped.plan.conditions)),
        "stop": stopped.stop and asdict(stopped.stop),
        "compared": stopped.is_compared,
        "bundle": None if stopped.bundle is None else str(stopped.bundle),
        "directory": str(stopped.directory),
        "run": {"name": run.name, "duration_s": run.duration_s, **recording_json(run.recording)},
        "notes": list(stopped.notes),
    }
