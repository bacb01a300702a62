"""A recorded run of tests and a trace with everything that traces can have, as material for the readers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(2, 2)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TESTS = "def test_passes(): pass\n\n\ndef test_fails(): assert 0\n"


def record(directory: Path) -> tuple[Path, Path]:
    """Return the directory of a run and that of a trace, made in an empty directory."""
    (directory / "test_some.py").write_text(TESTS)
    (directory / "train.py").write_text(PROGRAM)
    harness = (sys.executable, "-m", "harness")
    tracing = ("trace", "--out", "trace", "--save-tensors", "1", "--trace-ops", "1", "--", sys.executable, "train.py")
    for command, code in ((("run", "--gpus", "none"), 1), (tracing, 0)):
        done = subprocess.run([*harness, *command], cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    return (directory / ".rlharness" / "runs" / "latest").resolve(), directory / "trace"
