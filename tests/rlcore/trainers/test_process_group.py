"""A rank leaves its group, and ends without the interpreter's own exit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "programs" / "leaving_rank.py"
TIMEOUT_S = 240.0


def run_two(store: Path, *arguments: str) -> list[tuple[int, str, str]]:
    """Run two ranks; return the exit status and the output of each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    try:
        for rank in range(2):
            command = [sys.executable, str(PROGRAM), str(rank), str(store), *arguments]
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        said = [process.communicate(timeout=TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


def test_ranks_leave_with_their_status_and_their_output(tmp_path: Path) -> None:
    assert [(status, out) for status, out, _ in run_two(tmp_path / "store")] == [(0, "sum 1")] * 2


@pytest.mark.full
def test_ranks_that_fail_say_why(tmp_path: Path) -> None:
    for status, out, err in run_two(tmp_path / "store", "--fail"):
        assert (status, out) == (1, "sum 1")
        assert "ValueError: as asked" in err
