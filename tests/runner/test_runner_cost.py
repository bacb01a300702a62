"""The measurements of what the runner costs, at a small size: that they measure. How much is no test's business."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def measure(program: str, *arguments: str) -> str:
    """What a benchmark printed; it must succeed, and complain of nothing."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        cwd=BENCHMARKS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def figures(pattern: str, text: str) -> list[float]:
    """The numbers that `pattern` finds, in their order."""
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in:\n{text}"
    return [float(number) for number in found.groups()]


@pytest.mark.timeout(120)
def test_the_cost_of_the_runner_is_measured() -> None:
    text = measure("runner_cost.py", "--units", "9", "--tests", "3", "--leader-s", "0.6", "--real-units", "2")
    assert "9 units of 3 tests, 8 pretended GPUs" in text
    total_ms, own_ms, supervisor_ms = figures(r"per unit: ([\d.]+) ms \(runner ([\d.]+) ms, supervisor ([\d.]+)", text)
    assert total_ms == pytest.approx(own_ms + supervisor_ms, abs=0.11)
    assert min(own_ms, supervisor_ms) > 0
    stand_in_ms, collection_s = figures(r"stand-in's ([\d.]+) ms a unit are left out, and ([\d.]+) s", text)
    assert min(stand_in_ms, collection_s) > 0
    total_mb, peak_mb, num_processes, supervisors_mb = figures(
        r"memory: ([\d.]+) MB \(runner's peak ([\d.]+) MB,.* (\d+) processes at once, ([\d.]+) MB", text
    )
    assert total_mb == pytest.approx(peak_mb + supervisors_mb, abs=0.11)
    assert num_processes >= 1, "a supervisor was seen"
    assert figures(r"subprocess.run per file, no supervision: ([\d.]+) ms", text)[0] > 0
    assert "pytest -n 2" in text
    bare_ms, under_ms = figures(r"real pytest, 2 files.*: (\d+) ms per file bare, (\d+) ms under the runner", text)
    assert min(bare_ms, under_ms) > 0


@pytest.mark.timeout(120)
def test_what_is_waited_for_before_the_first_test_is_measured() -> None:
    text = measure("start_up.py", "--files", "8", "--runs", "1")
    assert figures(r"--help, median of 1: ([\d.]+) s", text)[0] > 0
    assert figures(r"plan, 8 files that import torch: ([\d.]+) s .*; all planned", text)[0] > 0
