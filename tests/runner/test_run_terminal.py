"""Runs on a terminal of their own: what Ctrl-C typed there does, and the terminal going away."""

import os
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import PATIENCE_S, QUICK, Done, until, write_suite
from tests.support.terminal import on_terminal, plain, start_on_terminal

SLEEPS = "import time\ndef test_sleeps():\n    open('asleep', 'w')\n    time.sleep(60)\n"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.mark.parametrize("num_times", [pytest.param(1, marks=pytest.mark.full), 2])
def test_ctrl_c_typed_on_the_terminal(tmp_path: Path, num_times: int) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS, "test_b.py": QUICK})
    record = Done(tmp_path, 0, "", "").record / "events.jsonl"
    with on_terminal(tmp_path, "run", "--gpus", "none", "--grace", "20") as (process, terminal):
        until((tmp_path / "asleep").exists, process)
        for number in range(num_times):
            if number:
                until(lambda: "cancel_requested" in record.read_text(), process)
            if process.poll() is None:
                terminal.type("\x03")
        code = process.wait(PATIENCE_S)
        shown = terminal.all_shown()
    assert code == ExitCode.INTERRUPTED
    done = Done(tmp_path, code, shown, "")
    done.assert_sound()
    assert done.outcomes["test_a.py"] == "interrupted"
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    text = plain(shown)
    assert "SIGINT: no more units start; running units are terminated (interrupt again to kill them)" in " ".join(
        text.split()
    )
    assert text.rstrip().splitlines()[-1].strip().endswith(")")
    assert "Traceback" not in text
    assert "^C" not in text.rstrip().splitlines()[-1]


@pytest.mark.full
def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS})
    process, master = start_on_terminal(tmp_path, "run", "--gpus", "none")
    with process:
        until((tmp_path / "asleep").exists, process)
        os.close(master)
        code = process.wait(PATIENCE_S)
    done = Done(tmp_path, code, "", "")
    done.assert_sound()
    assert code == ExitCode.INTERRUPTED
    assert [event["reason"] for event in done.of("cancel_requested")] == ["SIGHUP"]
