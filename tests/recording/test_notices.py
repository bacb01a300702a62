"""Lines of the recorder: seen by the person, and never the end of the program, wherever they go."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.recording import notices
from tests.support.suite_runs import environment

SAYS = """
import sys
from harness.recording import notices
notices.say("first")
notices.say_once("second")
notices.say_once("second")
print("goes on", flush=True)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_in_the_place_of_standard_error_does_not_end_the_program(unbuffered: str) -> None:
    environ = {**environment(), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SAYS], env=environ, stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"goes on\n")


def test_what_stands_in_the_place_of_standard_error_gets_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notices.say("here")
    assert capsys.readouterr().err == "rlharness: here\n"
    monkeypatch.setattr(sys, "stderr", None)
    notices.say("nowhere")
    assert capsys.readouterr() == ("", "")
