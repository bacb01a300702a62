"""The tests of plans on a Ray cluster, in a process of their own: Ray's driver is no fork of another."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CASES = "tests/rlcore/distributed/ray_cluster_cases.py"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_plans_are_reserved_started_and_given_back_on_two_nodes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "xdist", "-p", "timeout", CASES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 8
