"""`rlharness doctor` beside real GPUs: no false alarm on one that is in order, and torch is seen to find it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.gpus(1)
def test_a_card_in_order_raises_no_alarm() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    alarms = [finding for check, finding in found.items() if "GPU" in check and finding["severity"] != "fine"]
    assert alarms == []
    assert (found["driver"]["severity"], found["torch"]["severity"]) == ("fine", "fine")
    assert "serves CUDA up to" in found["driver"]["measured"]
    assert "finds the GPUs" in found["torch"]["measured"]
