"""The tests of workers as actors of Ray, in a process of their own: Ray's driver is no fork of another."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlcore.errors import InvalidValueError
from tests.rlcore.distributed.workers import Adder

ROOT = Path(__file__).resolve().parents[3]
CASES = "tests/rlcore/distributed/ray_cases.py"
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


@needs_ray
def test_a_process_without_a_session_is_refused() -> None:
    from rlcore.distributed.worker_group import start_group

    with pytest.raises(InvalidValueError, match="this process has joined no session") as caught:
        start_group(Adder, role="adder")
    assert "ray.init()" in caught.value.remedy


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_ray
def test_actors_of_ray_behave_as_every_backend() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "xdist", "-p", "timeout", CASES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 30
