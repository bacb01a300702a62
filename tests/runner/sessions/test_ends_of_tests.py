"""Tests that end their process, in every isolation mode: the same outcome of the test, of its file and of the rest."""

import json
from pathlib import Path

import pytest

from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
RUN = ("run", "--gpus", "none", "--no-split", "--no-check-leaning", "--grace", "1", "--json", "--isolate")
MODES = ("file", *(pytest.param(mode, marks=pytest.mark.full) for mode in ("test", "interpreter")))
AFTER = "def test_before(): pass\ndef test_it({fixture}): {statement}\ndef test_after(): pass\n"
ENDS = {
    "interrupts": ("raise KeyboardInterrupt", "crashed", {"passed": 2, "unfinished": 1}, "test_it"),
    "exits_with_0": ("os._exit(0)", "exited_early", {"passed": 2, "unfinished": 1}, "test_it"),
    "exits_with_7": ("os._exit(7)", "crashed", {"passed": 2, "unfinished": 1}, "test_it"),
    "is_killed": ("os.kill(os.getpid(), 9)", "crashed", {"passed": 2, "unfinished": 1}, "test_it"),
    "raises_system_exit": ("raise SystemExit(0)", "failed", {"passed": 2, "failed": 1}, ""),
    "calls_sys_exit": ("sys.exit(3)", "failed", {"passed": 2, "failed": 1}, ""),
    "ends_pytest": ("pytest.exit('enough')", "failed", {"passed": 1, "unfinished": 1, "unstarted": 1}, ""),
    "ends_pytest_with_0": (
        "pytest.exit('enough', returncode=0)",
        "exited_early",
        {"passed": 1, "unfinished": 1, "unstarted": 1},
        "test_it",
    ),
    "interrupts_in_teardown": ("pass", "crashed", {"passed": 3}, "test_it"),
}
"""What a test does, the outcome of its file, the outcomes of the tests, and the test that the reason names."""
FIXTURE = "import os, sys, pytest\n@pytest.fixture\ndef interrupted():\n    yield\n    raise KeyboardInterrupt\n"


@pytest.mark.parametrize("mode", MODES)
def test_a_test_that_ends_its_process_has_the_same_outcome_in_every_mode(tmp_path: Path, mode: str) -> None:
    files = {}
    for name, (statement, *_) in ENDS.items():
        fixture = "interrupted" if name == "interrupts_in_teardown" else ""
        files[f"test_{name}.py"] = FIXTURE + AFTER.format(statement=statement, fixture=fixture)
    done = run(write_suite(tmp_path / "suite", files), *RUN, mode)
    found = {unit["path"]: unit for unit in json.loads(done.stdout)["units"]}
    seen = {name: (found[f"test_{name}.py"]["outcome"], found[f"test_{name}.py"]["tests"]) for name in ENDS}
    assert seen == {name: (outcome, tests) for name, (_, outcome, tests, _) in ENDS.items()}
    for name, (*_, named) in ENDS.items():
        assert named in found[f"test_{name}.py"]["reason"]
