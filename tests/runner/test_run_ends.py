"""How runs end before their time: signals, limits, failures enough, and what is kept and said then."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.nvml_stub.build import compiler, stub_env
from tests.support.suite_runs import QUICK, Done, ended, environment, interrupted, run, started, until, write_suite

SLEEPS = "import time\ndef test_first(): pass\ndef test_sleeps():\n    open('asleep', 'w')\n    time.sleep(60)\n"
GRACEFUL = """
import time
def test_takes_its_time():
    try:
        open('asleep', 'w')
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.2)
def test_next(): pass
"""
DEAF = """
import signal, time
def test_deaf():
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    open('asleep', 'w')
    time.sleep(60)
"""
SLOW_IMPORT = "import time\nopen('asleep', 'w')\ntime.sleep(60)\n" + QUICK
COMPUTED = "import pytest\npytestmark = pytest.mark.gpus(int('0'))\n"
RUN = ("run", "--gpus", "none")


def asleep(directory: Path) -> bool:
    return (directory / "asleep").exists()


def interrupt(directory: Path, *arguments: str, signums: tuple[int, ...] = (signal.SIGINT,)) -> Done:
    """A run that gets the signals once one of its files sleeps."""
    done = interrupted(directory, *RUN, *arguments, ready=lambda: asleep(directory), signums=signums)
    done.assert_sound()
    return done


def result(done: Done, path: str) -> dict[str, Any]:
    return done.results[path]


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.full),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.full),
    ],
)
def test_one_signal_ends_what_runs_in_order_and_keeps_every_result(tmp_path: Path, signum: signal.Signals) -> None:
    files = {"test_a.py": QUICK, "test_b.py": SLEEPS, "test_c.py": QUICK}
    done = interrupt(write_suite(tmp_path, files), "--cpu-units", "1", signums=(signum,))
    assert done.code == ExitCode.INTERRUPTED
    assert done.outcomes["test_b.py"] == "interrupted"
    counts = result(done, "test_b.py")["tests"]["counts"]
    assert counts["passed"] == 1, "what had ended by then is kept"
    assert counts.keys() <= {"passed", "unfinished", "failed"}
    others = {outcome for path, outcome in done.outcomes.items() if path != "test_b.py"}
    assert others <= {"passed", "not_run"}
    (cancel,) = done.of("cancel_requested")
    assert (cancel["reason"], cancel["kill"]) == (signum.name, False)
    assert f"cancelled        {signum.name}: no more units start" in done.stdout
    assert "interrupted (1)\n  test_b.py: the run was cancelled" in done.stdout


@pytest.mark.full
def test_a_test_that_finishes_within_the_grace_is_kept(tmp_path: Path) -> None:
    done = interrupt(write_suite(tmp_path, {"test_a.py": GRACEFUL}))
    assert done.outcomes == {"test_a.py": "interrupted"}
    assert result(done, "test_a.py")["tests"]["counts"]["passed"] >= 1
    assert [e["outcome"] for e in done.of("test_finished")][:1] == ["passed"]


@pytest.mark.full
def test_two_signals_kill_at_once(tmp_path: Path) -> None:
    done = interrupt(
        write_suite(tmp_path, {"test_a.py": DEAF}), "--grace", "50", signums=(signal.SIGINT, signal.SIGINT)
    )
    assert done.code == ExitCode.INTERRUPTED
    assert [event["kill"] for event in done.of("cancel_requested")] == [False, True]
    assert done.events[-1]["wall_s"] < 25, "far less than the grace"


def test_an_interrupted_collection_ends_the_run_and_runs_nothing(tmp_path: Path) -> None:
    done = interrupt(write_suite(tmp_path, {"test_a.py": COMPUTED + SLOW_IMPORT}), "--json")
    assert done.code == ExitCode.INTERRUPTED
    assert [event["event"] for event in done.events] == [
        "run_started",
        "cancel_requested",
        "run_finished",
    ]
    assert done.events[1]["reason"] == "SIGINT during collection"
    assert '"exit_code": 2' in done.stdout


@pytest.mark.full
def test_an_interrupted_plan_says_so(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": COMPUTED + SLOW_IMPORT})
    done = interrupted(tmp_path, "plan", "--gpus", "none", ready=lambda: asleep(tmp_path), signums=(signal.SIGTERM,))
    assert (done.code, done.stdout) == (ExitCode.INTERRUPTED, "")
    assert done.stderr == "rlharness: interrupted by SIGTERM before any test ran\n"


HANGING_DRIVER = """
#include <stdio.h>
#include <unistd.h>
int nvmlInitWithFlags(unsigned int flags) {
    fclose(fopen("asleep", "w"));
    for (;;) pause();
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
"""


IMPATIENT = """
import sys
from harness.runner import run
from harness.cli.main import main
run.INVENTORY_S = 0.2
sys.exit(main())
"""


@pytest.fixture
def hanging(tmp_path: Path) -> dict[str, str]:
    """A suite on a machine whose NVIDIA driver never answers; the variables by which it is found."""
    if compiler() is None:
        pytest.skip("no C compiler here: the hanging NVIDIA driver cannot be built")
    write_suite(tmp_path, {"test_a.py": QUICK, "driver.c": HANGING_DRIVER})
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([str(compiler()), "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    return stub_env(library, library)


@pytest.mark.full
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_driver_that_hangs_does_not_hold_back_an_interrupt(
    tmp_path: Path, hanging: dict[str, str], command: str
) -> None:
    with started(tmp_path, command, "--gpus", "auto", env=hanging) as process:
        until(lambda: asleep(tmp_path), process)
        process.send_signal(signal.SIGINT)
        done = ended(process, tmp_path)
    assert (done.code, done.stdout) == (ExitCode.INTERRUPTED, "")
    assert done.stderr == "rlharness: interrupted by SIGINT before any test ran\n"
    assert not (tmp_path / ".rlharness").exists()


def test_a_driver_that_does_not_answer_is_said(tmp_path: Path, hanging: dict[str, str]) -> None:
    command = [sys.executable, "-c", IMPATIENT, "run", "--gpus", "auto"]
    env = environment(**hanging)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ExitCode.USAGE_ERROR
    assert "error: --gpus auto: the GPU driver did not answer within 0.2 s\n  legal:  " in done.stderr
    assert "run the files that need no GPU with --gpus none" in done.stderr


@pytest.mark.full
def test_a_terminal_that_hangs_up_costs_no_record(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS})
    with started(tmp_path, *RUN) as process:
        until(lambda: asleep(tmp_path), process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # what it writes there from now on fails
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        process.wait(60)
        done = Done(tmp_path, process.returncode, "", "")
    done.assert_sound()
    assert done.code == ExitCode.INTERRUPTED


@pytest.mark.full
def test_usr1_has_a_run_say_what_runs(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS})
    with started(tmp_path, *RUN) as process:
        until(lambda: asleep(tmp_path), process)
        record = tmp_path / ".rlharness" / "runs" / "latest" / "events.jsonl"
        until(lambda: "test_a.py::test_sleeps" in record.read_text(), process)
        process.send_signal(signal.SIGUSR1)
        until(lambda: "dump_requested" in record.read_text(), process)
        process.send_signal(signal.SIGINT)
        done = ended(process, tmp_path)
    done.assert_sound()
    assert "dump             1 now, 0 queued, 0 of 1 done" in done.stdout
    assert "test_a.py, " in done.stdout
    assert "in test_sleeps for " in done.stdout


@pytest.mark.full
def test_usr1_during_collection(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": COMPUTED + SLOW_IMPORT})
    done = interrupted(tmp_path, *RUN, ready=lambda: asleep(tmp_path), signums=(signal.SIGUSR1, signal.SIGINT))
    done.assert_sound()
    assert "dump             collecting" in done.stdout


# ------------------------------------------------------------------------------------------------- limits and slowness


MARKED = """
import time, pytest
def test_first(): pass
@pytest.mark.timeout(0.5)
def test_too_long(): time.sleep(60)
"""
TABLE = '"test_table.py" = { timeout = 1.5 }\n'


@pytest.mark.full
def test_limits_of_a_marker_the_table_and_the_command_line(tmp_path: Path) -> None:
    files = {"test_marker.py": MARKED, "test_table.py": SLEEPS, "needs.toml": TABLE}
    arguments = ("--needs", "needs.toml", "--slow", "0.5", "--grace", "1", "--cpu-units", "2")
    done = run(write_suite(tmp_path, files), *RUN, *arguments, "--", "-p", "no:timeout")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_marker.py": "timed_out", "test_table.py": "timed_out"}
    assert result(done, "test_marker.py")["reason"].startswith(
        "test_marker.py::test_too_long ran longer than its own limit of "
    )
    assert result(done, "test_table.py")["reason"].startswith("the file ran longer than 1.5 s")
    assert {e["path"]: e["reason"] for e in done.of("attempt_terminating")} == {
        "test_marker.py": "test_timeout",
        "test_table.py": "timeout",
    }
    assert sorted(e["path"] for e in done.of("attempt_slow")) == ["test_marker.py", "test_table.py"], "once each"
    assert "slow             test_table.py, " in done.stdout
    for path in done.outcomes:
        assert "test_" in Path(result(done, path)["directory"], "stacks.txt").read_text()
        assert result(done, path)["tests"]["counts"]["passed"] == 1
    assert done.stdout.count(" stacks of its processes at termination ") == 2


@pytest.mark.full
def test_a_file_that_hangs_at_import_has_an_outcome(tmp_path: Path) -> None:
    files = {"test_a.py": SLOW_IMPORT, "test_b.py": COMPUTED + SLOW_IMPORT, "test_c.py": QUICK}
    done = run(write_suite(tmp_path, files), *RUN, "--collect-timeout", "5", "--grace", "0.5")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_a.py": "collect_timeout", "test_b.py": "collect_timeout", "test_c.py": "passed"}


# ------------------------------------------------------------------------------------------------------------- maxfail


FAILS = "def test_fails(): assert False\n"
WAITS = """
import os
def test_waits():
    while not os.path.exists("failed"):
        pass
"""
FAILS_AND_TELLS = "def test_fails():\n    open('failed', 'w')\n    assert False\n"


@pytest.mark.full
@pytest.mark.parametrize("option", [("-x",), ("--maxfail", "1"), ("--maxfail", "7", "-x")])
def test_after_enough_failures_what_runs_may_end(tmp_path: Path, option: tuple[str, ...]) -> None:
    write_suite(tmp_path, {"test_0.py": FAILS_AND_TELLS, "test_1.py": WAITS})
    done = run(tmp_path, *RUN, *option, "--cpu-units", "2")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_0.py": "failed", "test_1.py": "passed"}


@pytest.mark.full
def test_what_maxfail_left_out_is_listed(tmp_path: Path) -> None:
    files = {f"test_{number}.py": FAILS for number in range(3)}
    done = run(write_suite(tmp_path, files), *RUN, "-x", "--cpu-units", "1")
    done.assert_sound()
    assert sorted(done.outcomes.values()) == ["failed", "not_run", "not_run"]
    assert "not run because the run was cancelled (2)" in done.stdout
    assert "--maxfail 1 was reached" in done.stdout
    assert not done.events[-1]["error"]


@pytest.mark.full
@pytest.mark.parametrize("gap_s", [0.03, 0.05, 0.1, 0.15, 0.3])
def test_three_interrupts_in_a_row_leave_the_exit_code(tmp_path: Path, gap_s: float) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS})
    with started(tmp_path, *RUN) as process:
        until(lambda: asleep(tmp_path), process)
        for _ in range(3):
            process.send_signal(signal.SIGINT)  # does nothing once the process has been waited for
            time.sleep(gap_s)
        assert ended(process, tmp_path).code == ExitCode.INTERRUPTED


@pytest.mark.full
def test_a_signal_from_a_test_to_its_supervisor_is_no_interruption(tmp_path: Path) -> None:
    signals = "import os, signal, time\ndef test_it():\n    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(60)\n"
    files = {"test_a.py": signals, "test_b.py": QUICK}
    done = run(write_suite(tmp_path, files), *RUN, "--containment", "subreaper")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_a.py": "supervisor_lost", "test_b.py": "passed"}


@pytest.mark.full
def test_a_lone_file_that_hangs_at_import_has_the_limit_of_a_file(tmp_path: Path, own_cache: Path) -> None:
    suite = write_suite(tmp_path / "suite", {"test_hangs.py": "import time\ntime.sleep(600)\ndef test_a(): pass\n"})
    done = run(suite, "run", "--gpus", "none", "--timeout", "2", "--grace", "1")
    assert (done.code, done.outcomes) == (1, {"test_hangs.py": "collect_timeout"})
    assert not done.of("attempt_started")
