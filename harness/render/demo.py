"""Output of `rlharness demo` around its two commands, and its result."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.bits.text import one_line, path_text
from harness.lab.demo.findings import (
    PLANTED_NAME,
    PLANTED_PHASE,
    PLANTED_STEP,
    DemoResult,
    DivergenceFinding,
    FileFinding,
)
from harness.lab.demo.project import TRAIN
from harness.render.run_words import label
from harness.runner.units import Outcome

VERSION = 1
GREEN, RED, BOLD = "32", "1;31", "1"
INSTALL_TORCH = "install torch to see `rlharness replay`"


def introduction(directory: Path) -> str:
    """Return where the example project is, and the command that changes into it."""
    name = path_text(directory)
    return (
        f"The example project is in {one_line(name)}.\nComments in its files say what is planted.\n"
        f"\n$ cd {shlex.quote(one_line(name))}"
    )


def run_heading(words: Sequence[str], *, colour: bool) -> str:
    """Return what the first command is about, and the command."""
    return _heading(
        "1. A suite of eight files on four simulated GPUs; one hangs, one crashes.",
        ["rlharness", "run", *words],
        colour=colour,
    )


def replay_heading(python: str, *, colour: bool) -> str:
    """Return what the second command is about, and the command."""
    return _heading(
        "2. A training program, run twice. It seeds torch, and yet its runs differ.",
        ["rlharness", "replay", "--", python, TRAIN],
        colour=colour,
    )


def _heading(title: str, command: Sequence[str], *, colour: bool) -> str:
    return f"\n{_paint(f'# {title}', BOLD, colour=colour)}\n$ {shlex.join(command)}"


def demo_text(result: DemoResult, *, colour: bool) -> str:
    """Return what was planted beside what was found, and what to type next."""
    passing = [each for each in result.files if each.expected is Outcome.PASSED and each.is_as_expected]
    lines = ["", _paint("# What was planted, and what rlharness found", BOLD, colour=colour)]
    lines += [_file_line(each, colour=colour) for each in result.files if each not in passing]
    if passing:
        lines.append(f"  {_mark(colour=colour)}  {'all others':<22} {len(passing)} files passed beside them")
    if result.divergence is not None:
        lines.append(_divergence_line(result.divergence, colour=colour))
    else:
        lines.append(f"  --  {TRAIN:<22} not run: {INSTALL_TORCH}")
    return "\n".join([*lines, "", *_next_lines(result, colour=colour)])


def _mark(*, is_good: bool = True, colour: bool) -> str:
    return _paint("ok" if is_good else "NOT FOUND", GREEN if is_good else RED, colour=colour)


def _file_line(finding: FileFinding, *, colour: bool) -> str:
    """ok  tests/test_sampler.py   TIMED OUT."""
    found = "no outcome" if finding.outcome is None else label(finding.outcome)
    expected = "" if finding.is_as_expected else f", expected {label(finding.expected)}"
    mark = _mark(is_good=finding.is_as_expected, colour=colour)
    return f"  {mark}  {finding.path:<22} {found}{expected}"


def _divergence_line(finding: DivergenceFinding, *, colour: bool) -> str:
    """ok  train.py   DIVERGED at step 3."""
    planted = f"step {PLANTED_STEP}, {PLANTED_PHASE} {PLANTED_NAME}"
    if finding.step is None:
        found = f"no first difference, expected {planted}"
    elif finding.is_as_expected:
        found = f"DIVERGED  {planted} (unseeded noise)"
    else:
        found = f"DIVERGED  step {finding.step}, {finding.phase} {finding.name}, expected {planted}"
    return f"  {_mark(is_good=finding.is_as_expected, colour=colour)}  {TRAIN:<22} {found}"


def _next_lines(result: DemoResult, *, colour: bool) -> Iterator[str]:
    """The commands to type next, each with what it shows."""
    yield _paint(f"# Next, in {one_line(path_text(result.directory))}", BOLD, colour=colour)
    yield "$ rlharness plan --gpus sim:4"
    yield "    shows the schedule, now that the durations are known"
    if result.divergence is not None:
        words = ["rlharness", "replay", "--step", str(PLANTED_STEP), "--trace-ops", "--", result.python, TRAIN]
        yield f"$ {shlex.join(words)}"
        yield "    names the operation and the line that draw the noise"
    yield "In your own project, type `rlharness run` for `pytest`, and put"
    yield "`rlharness replay --` before the command that trains."


def _paint(text: str, tone: str, *, colour: bool) -> str:
    return f"\x1b[{tone}m{text}\x1b[0m" if colour else text


def demo_json(result: DemoResult) -> dict[str, Any]:
    """Return the same in plain values only."""
    first = result.divergence
    return {
        "version": VERSION,
        "exit_code": int(result.exit_code),
        "directory": str(result.directory),
        "suite": [
            {
                "path": each.path,
                "expected": each.expected.value,
                "outcome": None if each.outcome is None else each.outcome.value,
                "reason": each.reason,
            }
            for each in result.files
        ],
        "replay": None
        if first is None
        else {
            "expected": {"step": PLANTED_STEP, "phase": PLANTED_PHASE, "name": PLANTED_NAME},
            "first_difference": {"step": first.step, "phase": first.phase, "name": first.name},
        },
    }
