"""Runs of the runner within the lease of a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run_inside(tmp_path: Path, files: dict[str, str], *options: str) -> tuple[int, dict[str, Any]]:
    """Run a runner of its own on `files`, which this test writes; its exit code and its JSON summary."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "--gpus", "auto", "--json", *options],
        cwd=tmp_path,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout)


def need_gpus(count: int) -> None:
    """Skip on a machine, or within a lease, of fewer GPUs."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible")
    if torch.cuda.device_count() < count:
        pytest.skip(f"{count} CUDA devices are needed, {torch.cuda.device_count()} visible")
