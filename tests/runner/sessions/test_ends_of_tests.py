"""Tests that end their process, in every isolation mode: the same outcome of the test, of its file and of the rest."""

import json
import xml.etree.ElementTree as ET
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
    "interrupts_in_teardown": ("pass", "crashed", {"passed": 2, "unfinished": 1}, "test_it"),
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


@pytest.mark.parametrize("mode", MODES)
def test_a_teardown_that_hangs_is_named_in_every_mode(tmp_path: Path, mode: str) -> None:
    """By the limit of the test, whether it had passed or failed."""
    text = "import time, pytest\n@pytest.fixture\ndef hangs():\n    yield\n    time.sleep(60)\n"
    text += "@pytest.mark.timeout(0.2)\ndef test_it(hangs): {}\ndef test_after(): pass\n"
    files = {"test_a.py": text.format("pass"), "test_b.py": text.format("assert 0")}
    done = run(write_suite(tmp_path / "suite", files), *RUN, mode, "--grace", "4", "--junit", "j.xml")
    assert done.outcomes == dict.fromkeys(files, "timed_out")
    assert all(f"{path}::test_it" in result["reason"] for path, result in done.results.items())
    counts = {path: result["tests"]["counts"] for path, result in done.results.items()}
    assert counts == {"test_a.py": {"unfinished": 1, "passed": 1}, "test_b.py": {"error": 1, "passed": 1}}
    cases = [case for case in ET.parse(tmp_path / "suite" / "j.xml").iter("testcase") if case.get("name") == "test_it"]
    found = [[child.tag for child in case if child.tag != "system-out"] for case in cases]
    assert found == [["error"], ["failure", "error"]]
