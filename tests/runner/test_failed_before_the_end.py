"""Tests that had failed before their file was ended: the terminal shows them, whatever ended it."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import interrupted, run, write_suite

RUN = ("run", "--gpus", "none")
FAILS = "import os, signal, time\ndef test_one():\n    left = 'FIRST'\n    assert left == 'OTHER', 'UNIQUE_ONE'\n"
DEAF = """
def test_deaf():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    open('asleep', 'w')
    time.sleep(60)
"""
ENDS = {
    "segfault": "def test_two(): os.kill(os.getpid(), signal.SIGSEGV)\n",
    "os_exit": "def test_two(): os._exit(3)\n",
    "killed": DEAF,
}


def shown(text: str) -> tuple[int, int]:
    """How often the name with its reason, and the line of the failure, are there."""
    return (
        text.count("FAILED test_a.py::test_one: AssertionError: UNIQUE_ONE"),
        text.count(">       assert left == 'OTHER', 'UNIQUE_ONE'")
        + text.count(">   assert left == 'OTHER', 'UNIQUE_ONE'"),
    )


@pytest.mark.parametrize(
    "how", ["segfault", *(pytest.param(each, marks=pytest.mark.full) for each in ("os_exit", "killed"))]
)
def test_a_file_that_dies_names_the_test_that_had_failed(tmp_path: Path, how: str) -> None:
    write_suite(tmp_path, {"test_a.py": FAILS + ENDS[how]})
    done = run(tmp_path, *RUN, "--timeout", "4", "--grace", "0.5")
    assert done.code == ExitCode.TESTS_FAILED
    assert shown(done.stdout) == (1, 1)


@pytest.mark.full
def test_a_file_that_is_interrupted_names_the_test_that_had_failed(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": FAILS + DEAF})
    done = interrupted(tmp_path, *RUN, "--grace", "0.5", ready=(tmp_path / "asleep").exists)
    assert done.code == ExitCode.INTERRUPTED
    assert done.outcomes == {"test_a.py": "interrupted"}
    assert shown(done.stdout) == (1, 1)
    kept = done.results["test_a.py"]["directory"]
    assert done.stdout.count(f"(kept in {kept})") == 2


@pytest.mark.full
def test_a_failure_that_pytest_has_shown_is_shown_once(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": FAILS + DEAF.replace("signal.SIG_IGN", "signal.default_int_handler")})
    done = run(tmp_path, *RUN, "--timeout", "3")
    assert done.outcomes == {"test_a.py": "timed_out"}
    assert shown(done.stdout) == (0, 1)


@pytest.mark.full
def test_pytest_that_refuses_to_summarise_leaves_it_to_rlharness(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": FAILS + "def test_two():\n    import pytest\n    pytest.exit('over', 7)\n"})
    assert shown(run(tmp_path, *RUN).stdout) == (1, 1)
