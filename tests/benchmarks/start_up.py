"""What is waited for before the first test runs: `rlharness --help`, and the collection of a suite that imports torch.

    python tests/benchmarks/start_up.py

Every file of the suite imports torch and has literal markers. A module in torch's place notes being imported: nothing
may. Exit status 1 where something did, or where a need was read wrongly. Beside it, where torch is installed: how long
one `import torch` takes, which is what each file would cost if it were imported in a process of its own. Seconds are
waited ones, with the processor time beside them: on a busy machine the two differ.
"""

import argparse
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "nn = None\nimport pathlib\n\npathlib.Path(__file__).with_suffix('.imported').touch()\n"
FILE = """import pytest
import torch
from torch import nn


@pytest.mark.gpus({gpus}, memory_gb=16)
def test_forward():
    assert nn.Linear(2, 2).cuda()(torch.ones(2, 2, device="cuda")).shape == (2, 2)
"""
WIDTHS = (1, 2, 4, 8)


def write_suite(directory: Path, num_files: int) -> None:
    """Files in rooms of fifty, of widths in turn, and a torch beside the configuration."""
    for number in range(num_files):
        room = directory / f"tests/room_{number // 50:02}"
        room.mkdir(parents=True, exist_ok=True)
        (room / f"test_file_{number:04}.py").write_text(FILE.format(gpus=WIDTHS[number % len(WIDTHS)]), "utf-8")
    (directory / "torch.py").write_text(TORCH, "utf-8")
    (directory / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n", "utf-8")


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians over the runs of a command, and what its last run printed."""

    wall_s: float
    cpu_s: float
    printed: str

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s (processor time {self.cpu_s:.2f} s)"


def timed(*command: str, cwd: Path, num_runs: int = 1) -> Timed:
    """Run a command; RuntimeError with its output where it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(ROOT)
    wall_s, cpu_s = [], []
    for _ in range(num_runs):
        start_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall_s.append(time.monotonic() - start_s)
        cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return Timed(statistics.median(wall_s), statistics.median(cpu_s), done.stdout)


def wrong_in(planned: str, directory: Path, num_files: int) -> str:
    """What is wrong with a plan; empty where all is well."""
    widths = sorted(len(unit["gpu_ids"]) for unit in json.loads(planned)["units"])
    expected = sorted(WIDTHS[number % len(WIDTHS)] for number in range(num_files))
    return "" if widths == expected else f"{len(widths)} of {num_files} units were planned, on {sum(widths)} GPUs"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--runs", type=int, default=10, help="of --help; the median counts")
    args = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, pytest {version('pytest')},"
        f" {platform.system()} {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="rlh-start-") as scratch:
        directory = Path(scratch)
        write_suite(directory, args.files)
        helped = timed("-m", "harness", "--help", cwd=directory, num_runs=args.runs)
        print(f"rlharness --help, median of {args.runs}: {helped}", flush=True)
        planned = timed("-m", "harness", "plan", "--gpus", "sim:8", "--json", cwd=directory)
        wrong = wrong_in(planned.printed, directory, args.files)
        print(f"rlharness plan, {args.files} files that import torch: {planned}; {wrong or 'all planned'}")
    if importlib.util.find_spec("torch"):
        imported = timed("-c", "import torch", cwd=ROOT)
        print(f"import torch {version('torch')}: {imported}, times {args.files} in a process per file")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
