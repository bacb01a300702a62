"""Runs a program unrecorded, recorded twice and recorded with its planted cause, and compares what came out.

unrecorded ─weights─┐
recorded A ─weights─┴ bitwise equal?     trace A ─┬─ diff ─ an honest pair: equal?
recorded B ───────────────────────────── trace B ─┘
planted    ───────────────────────────── trace P ─── diff with A ─ the right step, phase and tensor?
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.programs.table import Place, Program

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 300.0


class ProgramError(Exception):
    """A program did not end as it does when it is not recorded; the last lines of its output."""


@dataclass
class Seen:
    """What was seen of one program."""

    program: Program
    weights: str = ""
    """"equal", or what differs; "-" where a level changes them."""
    verdict: str = ""
    """Of the honest pair."""
    num_steps: int = 0
    num_logs: int = 0
    num_bytes: int = 0
    """Size of a trace."""
    place: Place | None = None
    """Where the planted cause was named."""
    problems: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Note what is not as the table wants it."""
        wanted = self.program
        if self.weights not in ("equal", "-"):
            self.problems.append(f"final weights: {self.weights}")
        if self.verdict != "equal":
            self.problems.append(f"an honest pair is {self.verdict.upper()}")
        if (self.num_steps, self.num_logs) != (wanted.num_steps, wanted.num_logs):
            found = f"{self.num_steps} steps in {self.num_logs} logs"
            self.problems.append(f"{found}, expected {wanted.num_steps} in {wanted.num_logs}")
        if self.place != wanted.place:
            self.problems.append(f"the planted cause is named in {self.place}, expected {wanted.place}")


def check(program: Program, bin_directory: Path, scratch: Path, *, is_quick: bool = False) -> Seen:
    """Carry out the four runs of a program one after the other, in folders below `scratch`.

    `is_quick` stops after an unrecorded and a recorded run, whose weights are compared; for programs at level `off`.
    """
    seen = Seen(program)
    try:
        _check(program, bin_directory, scratch, seen, is_quick=is_quick)
    except ProgramError as error:
        seen.problems.append(str(error))
    return seen


def _check(program: Program, bin_directory: Path, scratch: Path, seen: Seen, *, is_quick: bool) -> None:
    command = program.command(bin_directory)
    traces = {name: scratch / name / "trace" for name in (("a",) if is_quick else ("a", "b", "planted"))}
    plain = _run(command, scratch / "plain")
    recorded = {}
    for name, trace in traces.items():
        start = [sys.executable, "-m", "harness", "trace", "--out", str(trace), "--level", program.level, "--"]
        recorded[name] = _run([*start, *command], scratch / name, is_planted=name == "planted")
    seen.weights = "equal" if plain == recorded["a"] else f"{plain} unrecorded, {recorded['a']} recorded"
    if is_quick:
        seen.problems += [seen.weights] if plain != recorded["a"] else []
        return
    if program.level != "off":  # its flags choose other kernels: two recorded runs are compared
        seen.weights = "-" if recorded["a"] == recorded["b"] else "two runs of the level differ"
    seen.num_bytes = sum(path.stat().st_size for path in traces["a"].rglob("*") if path.is_file())
    _compare(traces, seen)
    seen.judge()


def _compare(traces: dict[str, Path], seen: Seen) -> None:
    logs = list(traces["a"].glob("rank-*.log"))
    honest = _diff(traces["a"], traces["b"])
    seen.num_logs, seen.num_steps, seen.verdict = len(logs), honest["num_steps"], honest["verdict"]
    if seen.verdict != "equal" and honest["first"]:
        seen.problems.append(f"the honest pair differs in {_place(honest)}; {honest['reasons']}")
    first = _diff(traces["a"], traces["planted"])
    seen.place = _place(first) if first["first"] else None


def _place(verdict: dict[str, Any]) -> Place:
    first = verdict["first"]
    value = first["a"] or first["b"] or {"phase": "-", "name": first["what"]}
    return Place(first["step"], value["phase"], value["name"])


def _diff(a: Path, b: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "diff", "--json", str(a), str(b)],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ProgramError(f"rlharness diff: {done.stderr.strip()[-800:]}") from None
    return verdict


def _environment() -> dict[str, str]:
    """Without the variables of an outer recording; one thread unless a program sets more."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLHARNESS_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _run(command: Sequence[str], directory: Path, *, is_planted: bool = False) -> list[str]:
    """Digests of the final weights, in order, of a command run in a new folder."""
    directory.mkdir(parents=True)
    weights = directory / "weights"
    env = {**_environment(), "WEIGHTS": str(weights), "PLANT": str(int(is_planted))}
    process = subprocess.Popen(
        command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # rlharness and launchers end what they have started
        output, _ = process.communicate()
        raise ProgramError(f"no end after {TIMEOUT_S:.0f} s:\n{output[-800:]}") from None
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise ProgramError(f"exit status {process.returncode} of {' '.join(command[:12])}:\n{output[-1500:]}")
    if not weights.exists():
        raise ProgramError(f"the program wrote no weights:\n{output[-800:]}")
    return sorted(weights.read_text("utf-8").splitlines())
