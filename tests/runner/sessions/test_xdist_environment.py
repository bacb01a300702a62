"""Suites that expect pytest-xdist: the variables and fixtures by which they tell their workers apart."""

import json
from pathlib import Path

import pytest

from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
CONFTEST = """
import os
def note(name, *values):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "a") as file:
        file.write(" ".join(values) + "\\n")
"""
TEST = """
import os, time, conftest
def test_worker(worker_id, testrun_uid):
    assert worker_id == os.environ["PYTEST_XDIST_WORKER"]
    assert testrun_uid == os.environ["PYTEST_XDIST_TESTRUNUID"]
    assert int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) == 2
    conftest.note("began", worker_id, testrun_uid)
    time.sleep(0.5)
"""


FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("interpreter", "test")]


@pytest.mark.parametrize("isolate", ["file", *FULL[:2]])
def test_units_side_by_side_have_different_workers(tmp_path: Path, isolate: str) -> None:
    files = {f"test_{name}.py": TEST for name in "abcd"}
    suite = write_suite(tmp_path / "suite", {"conftest.py": CONFTEST, **files})
    done = run(suite, "run", "--gpus", "none", "--cpu-units", "2", "--isolate", isolate)
    assert set(done.outcomes.values()) == {"passed"}
    noted = [line.split() for line in (suite / "began").read_text().splitlines()]
    assert len(noted) == 4
    assert {worker for worker, _ in noted} == {"gw0", "gw1"}
    assert {uid for _, uid in noted} == {done.of("run_started")[0]["run_id"]}


ASKS_FOR_XDIST = """
import warnings, pytest
@pytest.hookimpl(trylast=True)
def pytest_configure(config):  # as pytest-benchmark and pytest-rerunfailures ask
    if config.getoption("dist") != "no" or config.getoption("tx") or config.pluginmanager.hasplugin("xdist"):
        warnings.warn("Benchmarks are automatically disabled because xdist plugin is active.")
"""
IN_A_GROUP = """
import pytest
@pytest.mark.xdist_group("g")
def test_worker(worker_id, testrun_uid, pytestconfig):
    assert worker_id and testrun_uid
    assert pytestconfig.getoption("numprocesses") == 0
def test_other(): pass
"""


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["file", *FULL])
def test_no_plugin_finds_xdist_active_whatever_addopts_say(tmp_path: Path, isolate: str) -> None:
    addopts = "-p xdist -n 2 --dist=loadfile --maxprocesses=4 --no-loadscope-reorder --strict-markers"
    ini = f'[tool.pytest.ini_options]\naddopts = "{addopts}"\nfilterwarnings = ["error"]\n'
    files = {"pyproject.toml": ini, "conftest.py": ASKS_FOR_XDIST, "test_a.py": IN_A_GROUP, "test_b.py": IN_A_GROUP}
    suite = write_suite(tmp_path / "suite", files)
    done = run(suite, "run", "--gpus", "none", "--isolate", isolate, "--json")
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}, done.stdout + done.stderr
    assert any(note.startswith("-n 2 of pytest-xdist") for note in json.loads(done.stdout)["notes"])
    assert run(suite, "plan", "--gpus", "none").code == 0
