"""Starts a Ray cluster whose processes are daemons, and does not stop it: PASSED, its processes named and killed."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("ray")


def test_starts_a_cluster() -> None:
    command = ["-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false"]
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, *command], env=env, check=True)
