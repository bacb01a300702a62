"""`doctor --distributed` with NCCL on two real GPUs: every layer, and a bootstrap that cannot find its interface."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpus(2), pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def examine(**settings: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by their layers."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs; torch sees {torch.cuda.device_count()}")
    words = [sys.executable, "-m", "harness", "doctor", "--distributed", "2", "--backend", "nccl", "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_every_layer_is_passed() -> None:
    code, findings = examine()
    assert code == ExitCode.OK, findings
    assert {"store", "Gloo", "NCCL bootstrap", "NCCL transport", "first collective"} <= findings.keys()


def test_a_bootstrap_without_its_interface_is_named() -> None:
    code, findings = examine(NCCL_SOCKET_IFNAME="=nosuch0")
    assert code == ExitCode.TESTS_FAILED
    assert findings["NCCL bootstrap"]["severity"] == "broken"
    assert findings["NCCL bootstrap"]["exports"] == {"NCCL_SOCKET_IFNAME": "lo"}
    assert any("nosuch0" in line for line in findings["NCCL bootstrap"]["details"])
