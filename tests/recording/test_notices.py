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


def test_a_full_disk_in_the_place_of_standard_error_does_not_end_the_program() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SAYS], env=environment(), stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"goes on\n"), "not 120 either, of a buffer that is flushed at the end"


def test_a_line_is_said_in_order_with_what_the_program_prints() -> None:
    program = SAYS.replace("notices.say(", "print('before', end=' ', file=sys.stderr); notices.say(")
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=False)
    assert done.stderr == b"before rlharness: first\nrlharness: second\n"


def test_what_stands_in_the_place_of_standard_error_gets_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notices.say("here")
    assert capsys.readouterr().err == "rlharness: here\n"
    monkeypatch.setattr(sys, "stderr", None)
    notices.say("nowhere")
