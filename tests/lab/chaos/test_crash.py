"""An entry is killed at its moment, not before and not after."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from harness.lab.chaos.crash import CrashingRecorder

class Said:
    def begin_step(self, step): print("begin", step, flush=True)
    def record(self, phase, name, value, **others): print(phase, name, flush=True)
    def end_step(self, **values): print("end", flush=True)

recorder = CrashingRecorder(Said(), int(sys.argv[1]), sys.argv[2])
for step in range(3):
    recorder.begin_step(step)
    recorder.record("rollout", "tokens", 1)
    recorder.record("loss", "loss", 2)
    recorder.end_step()
"""
STEP = ["rollout tokens", "loss loss", "end"]


@pytest.mark.parametrize(
    ("moment", "happened"),
    [
        (("1", "loss"), ["begin 0", *STEP, "begin 1", "rollout tokens"]),
        pytest.param(("1", "end"), ["begin 0", *STEP, "begin 1", *STEP], marks=pytest.mark.full),
        pytest.param(("0", "rollout"), ["begin 0"], marks=pytest.mark.full),
        pytest.param(("7", "loss"), None, marks=pytest.mark.full),
    ],
)
def test_a_process_dies_at_its_moment(moment: tuple[str, str], happened: list[str] | None) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *moment], capture_output=True, text=True, check=False)
    if happened is None:
        assert (done.returncode, done.stdout.count("end")) == (0, 3), done.stderr
    else:
        assert (done.returncode, done.stdout.splitlines()) == (-signal.SIGKILL, happened), done.stderr
