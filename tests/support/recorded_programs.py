"""Programs nobody changed, run with and without a recording, as a user runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
PEERS_VARIABLE = "RLHARNESS_PEERS_PYTHON"
"""The interpreter of an environment with transformers and TRL."""
PEERS = os.environ.get(PEERS_VARIABLE, "")
NEEDS_PEERS = pytest.mark.skipif(not PEERS, reason=f"{PEERS_VARIABLE} names no Python with transformers and TRL")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    exit_code: int
    output: str
    errors: str


def run(*command: str, env: Mapping[str, str] | None = None, timeout_s: float = 240.0) -> Ran:
    """Run a command from the repository's root, with these variables on top of the environment."""
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **(env or {})}
    whole = {name: value for name, value in whole.items() if name != "RLHARNESS_TRACE"}
    done = subprocess.run(command, env=whole, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def program(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command of one of the programs."""
    return [python, str(PROGRAMS / f"{name}.py"), *arguments]


def record(
    out: Path, command: list[str], *options: str, env: Mapping[str, str] | None = None, exit_code: int = 0
) -> Ran:
    """`rlharness trace` of a command into `out`; AssertionError where it does not end as it should."""
    done = run(sys.executable, "-m", "harness", "trace", "--out", str(out), *options, "--", *command, env=env)
    assert done.exit_code == exit_code, (done.output, done.errors)
    return done


def compared(a: Path, b: Path) -> dict[str, Any]:
    """What `rlharness diff --json` says of two traces."""
    done = run(sys.executable, "-m", "harness", "diff", "--json", str(a), str(b))
    verdict: dict[str, Any] = json.loads(done.output)
    assert verdict["exit_code"] == done.exit_code
    return verdict


def told(a: Path, b: Path) -> str:
    """What `rlharness diff` says of two traces, for people."""
    return run(sys.executable, "-m", "harness", "diff", str(a), str(b)).output


def place(verdict: dict[str, Any]) -> tuple[int, str, str]:
    """(step, phase, name) of the first divergence."""
    first = verdict["first"]
    recorded_value = first["a"] or first["b"]
    return first["step"], recorded_value["phase"], recorded_value["name"]
