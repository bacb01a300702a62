"""Parts of test files in real processes: each test runs once, on the GPUs that it needs, beside those it belongs to."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.collected import collect_in
from tests.support.suite_runs import ROOT, Done, run, write_suite

MANY = """
import os, pytest
@pytest.mark.gpus(1)
@pytest.mark.parametrize("n", range(16))
def test_many(n): assert n != 7 and "," not in os.environ["CUDA_VISIBLE_DEVICES"]
"""
MIXED_NEEDS = """
import os, pytest
num_gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
@pytest.mark.gpus(4)
def test_all(): assert num_gpus == 4
@pytest.mark.gpus(1)
@pytest.mark.parametrize("n", range(3))
def test_one(n): assert num_gpus == 1
def test_unmarked(): assert num_gpus == 1
@pytest.mark.gpus(9)
def test_never(): pass
"""
TIED = """
import pytest
class TestOfClass:
    @pytest.fixture(scope="class")
    def shared(self): return 1
    def test_a(self, shared): pass
    def test_b(self, shared): pass
class TestSetup:
    @classmethod
    def setup_class(cls): pass
    def test_a(self): pass
@pytest.fixture(scope="module")
def engine(): return 1
@pytest.fixture
def client(engine): return 2
def test_module(client): pass
@pytest.mark.together("pair")
def test_marked(): pass
@pytest.mark.xdist_group("group")
def test_group(): pass
@pytest.fixture(scope="class")
def alone(): return 1
@pytest.mark.parametrize("n", [1, 2])
def test_free(n, alone, tmp_path, tmp_path_factory, capsys): pass
"""


def pytest_in(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=directory, env=env, check=False, capture_output=True, text=True, timeout=120)


UNITTEST = """
import unittest
def setup_module(): pass
def test_m(): pass
class TestU(unittest.TestCase):
    @classmethod
    def setUpClass(cls): pass
    def test_u(self): pass
"""


def test_ties_are_those_of_the_suite(tmp_path: Path) -> None:
    files = collect_in(write_suite(tmp_path, {"test_t.py": TIED, "test_m.py": UNITTEST})).files
    module = "module-fixture setup_module"
    ties = {test.nodeid.partition("::")[2]: set(test.ties) for file in files.values() for test in file.tests or ()}
    assert ties == {
        "TestOfClass::test_a": {"class test_t.py::TestOfClass"},
        "TestOfClass::test_b": {"class test_t.py::TestOfClass"},
        "TestSetup::test_a": {"class test_t.py::TestSetup"},
        "test_module": {"module-fixture engine"},
        "test_marked": {"together pair"},
        "test_group": {"together group"},
        "test_free[1]": set(),
        "test_free[2]": set(),
        "test_m": {module},
        "TestU::test_u": {module, "class test_m.py::TestU"},
    }


def test_plain_pytest_knows_the_marker(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_p.py": "import pytest\n@pytest.mark.together('a')\ndef test_a(): pass\n"})
    assert pytest_in(tmp_path, "--strict-markers", "-p", "harness.plugin", "test_p.py").returncode == 0


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The first run of two files on four GPUs: one of many tests, one of tests with different needs."""
    directory = tmp_path_factory.mktemp("split")
    write_suite(directory, {"pyproject.toml": "[tool.rlharness]\n", "test_many.py": MANY, "test_needs.py": MIXED_NEEDS})
    return run(directory, "run", "--gpus", "sim:4", "--json", "--junit", "junit.xml")


def splits_of(done: Done) -> dict[str, dict[str, Any]]:
    (collected,) = done.of("collection_finished")
    return {each["path"]: each for each in collected["splits"]}


@pytest.mark.full
def test_each_outcome_is_there_once(split: Done) -> None:
    split.assert_sound()
    summary = json.loads(split.stdout)
    many = [unit for unit in summary["units"] if unit["path"].startswith("test_many")]
    assert [unit["path"] for unit in many] == [f"test_many.py [{number}/4]" for number in range(1, 5)]
    total = Counter[str]()
    for unit in many:
        total.update(unit["tests"])
    assert total == {"passed": 15, "failed": 1}
    assert [failure["id"] for unit in many for failure in unit["failures"]] == ["test_many.py::test_many[7]"]
    suites = ET.parse(split.directory / "junit.xml").getroot()
    cases = Counter((case.get("classname"), case.get("name")) for case in suites.iter("testcase"))
    assert max(cases.values()) == 1
    assert sum(classname == "test_many" for classname, _ in cases) == 16
    assert {suite.get("file") for suite in suites.iter("testsuite")} == {"test_many.py", "test_needs.py"}


def test_tests_of_different_needs_have_parts_of_their_own(split: Done) -> None:
    outcomes = {path: outcome for path, outcome in split.outcomes.items() if path.startswith("test_needs")}
    assert Counter(outcomes.values()) == {"passed": 2, "not_run": 1}, split.stdout
    by_gpus = {each["unit"]["need"]["gpus"]: each for each in split.results.values() if "needs" in each["unit"]["path"]}
    assert {num_gpus: each["tests"]["counts"] for num_gpus, each in by_gpus.items()} == {
        4: {"passed": 1},
        1: {"passed": 4},
        9: {},
    }
    splits = {path: (each["reason"], each["num_parts"]) for path, each in splits_of(split).items()}
    assert splits == {"test_many.py": ("few_files", 4), "test_needs.py": ("needs_differ", 3)}


@pytest.mark.full
def test_the_history_has_one_duration_of_the_file_and_each_test(split: Done) -> None:
    known = json.loads(run(split.directory, "history", "--json").stdout)
    assert "test_many.py" in json.dumps(known)
    assert "[1/4]" not in json.dumps(known)
    assert "test_many.py::test_many[15]" in run(split.directory, "history", "test_many.py").stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [("--no-split",), ("--", "-k", "many"), ("test_many.py::test_many[1]",), ("--", "-x")]
)
def test_files_are_whole_where_that_is_asked_for(split: Done, arguments: tuple[str, ...]) -> None:
    done = run(split.directory, "run", "--gpus", "sim:4", *arguments)
    assert set(done.outcomes) <= {"test_many.py", "test_needs.py"}


@pytest.mark.full
def test_the_plan_names_parts_and_obstacles(tmp_path: Path) -> None:
    engine = "import pytest\n@pytest.fixture(scope='module', autouse=True)\ndef engine(): pass\n"
    write_suite(
        tmp_path,
        {
            "pyproject.toml": "[tool.rlharness]\n",
            "test_whole.py": engine + MIXED_NEEDS,
            "test_many.py": MANY,
        },
    )
    planned = json.loads(run(tmp_path, "plan", "--gpus", "sim:4", "--json").stdout)
    whole, many = sorted(planned["splits"], key=lambda each: each["num_parts"])
    obstacle = "its tests run in one process (module-fixture engine)"
    assert (whole["path"], whole["obstacle"]) == ("test_whole.py", obstacle)
    assert (many["path"], many["num_parts"]) == ("test_many.py", 4)
    (tmp_path / "pyproject.toml").write_text("[tool.rlharness]\nsplit = false\n")
    planned = json.loads(run(tmp_path, "plan", "--gpus", "sim:4", "--json").stdout)
    assert (planned["splits"], len(planned["units"]) + len(planned["never"])) == ([], 2)


@pytest.mark.full
def test_parts_share_what_their_file_imports(tmp_path: Path) -> None:
    heavy = "import os\nopen(f'imported_{os.getpid()}', 'w').close()\n"
    write_suite(
        tmp_path, {"pyproject.toml": "[tool.rlharness]\n", "heavy.py": heavy, "test_many.py": "import heavy" + MANY}
    )
    done = run(tmp_path, "run", "--gpus", "sim:4")
    assert len(done.outcomes) == 4
    assert len(list(tmp_path.glob("imported_*"))) == 1, "once for all parts"
