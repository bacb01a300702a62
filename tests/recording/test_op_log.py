"""The file of a step's operations: whole lines, whatever ends the process or the disk."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.recording.operations import OpLog
from harness.trace.ops import read_ops
from tests.support.file_limits import largest_file

ROOT = Path(__file__).resolve().parents[2]
OPERATION = {
    "k": "op",
    "i": 0,
    "phase": "forward",
    "op": "aten.exp.default",
    "at": "a.py:1 f",
    "args": "",
    "in": [],
    "from": [],
}


def test_giving_up_is_said_once_and_written_down(tmp_path: Path) -> None:
    said: list[str] = []
    log = OpLog(tmp_path, rank=0, step=0, say=said.append)
    for problem in ("planted", "again"):
        log.close(problem)
    log.append({**OPERATION, "out": []})
    log.close()
    found = read_ops(tmp_path, 0, 0)
    assert found is not None
    assert (found.problem, found.operations, len(said)) == ("planted", (), 1)
    assert "planted" in said[0]


def test_a_full_disk_ends_the_record_and_not_the_program(tmp_path: Path) -> None:
    said: list[str] = []
    log = OpLog(tmp_path, rank=0, step=0, say=said.append)
    log.append({**OPERATION, "out": []})
    with largest_file(log.path.stat().st_size + 20):
        for number in range(3):
            log.append({**OPERATION, "i": number + 1, "out": []})
    log.close()
    assert (len(said), log.num_ops) == (1, 1)
    assert "File too large" in said[0]
    found = read_ops(tmp_path, 0, 0)
    assert found is not None
    assert (len(found.operations), found.problem) == (1, "its recording was cut")


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from harness.recording.operations import OpLog
from harness.recording.operations import OpMode
with OpMode(OpLog(Path(sys.argv[1]), rank=0, step=3, say=print)):
    for _ in range(5):
        torch.ones(2).exp()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_kill_9_costs_no_operation_that_has_ended(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    found = read_ops(tmp_path, 0, 3)
    assert found is not None
    assert (len(found.operations), found.problem) == (10, "its recording was cut")
