"""Runs Triton's kernels on the host, in Triton's interpreter, which needs no GPU.

Triton comes with torch's builds for CUDA alone. CI installs it into a directory of its own, which TRITON_DIRECTORY
names: in the tests' own environment, torch would find it and compile with it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRITON_DIRECTORY = "RLHARNESS_TESTS_TRITON"


def run_interpreted(script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which chooses the interpreter before the import. Skip without Triton."""
    directory = os.environ.get(TRITON_DIRECTORY, "")
    if not directory and find_spec("triton") is None:
        pytest.skip(f"Triton is not installed, and {TRITON_DIRECTORY} names no directory that has it")
    paths = [str(ROOT), *sys.path, *([directory] if directory else [])]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "ignore", str(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
