"""The plugin as pytest finds it where rlharness is installed: by its entry point, without an option or a conftest."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.suite_runs import HARNESS, environment

ROOT = Path(__file__).parents[1]
SUITE = """
def test_port(free_port, gpu_ids):
    assert free_port > 0
    assert gpu_ids == ()
"""
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A directory outside the repository with the example of the README, and a test that uses the plugin's fixtures."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example, "utf-8")
    (tmp_path / "test_port.py").write_text(SUITE, "utf-8")
    return tmp_path


def run(directory: Path, *command: str) -> str:
    """Run a command that must succeed where pytest loads what is installed; return what it printed."""
    env = {**environment(CUDA_VISIBLE_DEVICES=""), "PYTHONPATH": ""}
    del env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_OK, done.stdout + done.stderr
    return done.stdout + done.stderr


def plain_pytest(directory: Path, *words: str, python: tuple[str, ...] = ("-m", "pytest")) -> str:
    """Run pytest without naming a plugin; return what it printed."""
    return run(directory, sys.executable, *python, "-p", "no:cacheprovider", *words)


def test_the_installed_entry_point_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = project["entry-points"]["pytest11"]
    assert declared == {"harness.plugin": "_rlharness_pytest"}, "another is registered twice beside -p harness.plugin"
    points = metadata.distribution("rlharness").entry_points.select(group="pytest11")
    assert {point.name: point.value for point in points} == declared, "install the project again"


@pytest.mark.parametrize("named", [(), pytest.param(("-p", "harness.plugin"), marks=pytest.mark.full)])
def test_plain_pytest_knows_markers_and_fixtures(suite: Path, named: tuple[str, ...]) -> None:
    assert "2 passed" in plain_pytest(suite, "--strict-markers", "-Werror", *named)


@pytest.mark.full
@pytest.mark.parametrize(
    "plugins", [pytest.param('["harness.fixtures"]', marks=pytest.mark.full), '["harness.plugin", "harness.fixtures"]']
)
def test_a_conftest_may_still_name_the_plugin(suite: Path, plugins: str) -> None:
    (suite / "conftest.py").write_text(f"pytest_plugins = {plugins}\n", "utf-8")
    assert "2 passed" in plain_pytest(suite, "--strict-markers", "-Werror")


@pytest.mark.full
def test_pytest_lists_markers_and_options(suite: Path) -> None:
    markers = plain_pytest(suite, "--markers")
    assert markers.count("@pytest.mark.gpus(n, memory_gb=0") == 1
    assert markers.count("@pytest.mark.timeout(") == 1
    assert "--rlharness-report=FILE" in plain_pytest(suite, "--help")


@pytest.mark.full
def test_a_suite_with_a_gpus_marker_of_its_own_runs_and_is_told(suite: Path) -> None:
    (suite / "test_other.py").write_text("import pytest\n@pytest.mark.gpus('all')\ndef test_a(): pass\n", "utf-8")
    printed = plain_pytest(suite, "-Werror")
    assert "3 passed" in printed
    assert "rlharness: test_other.py::test_a: gpus marker: number of GPUs 'all'; legal: a whole number" in printed


@pytest.mark.full
def test_a_process_that_has_imported_the_package_starts_pytest_without_a_warning(suite: Path) -> None:
    code = "import harness, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    assert "2 passed" in plain_pytest(suite, "-Werror", python=("-c", code))


@pytest.mark.full
@pytest.mark.parametrize(
    "conftest", ["", pytest.param('pytest_plugins = ["harness.fixtures"]\n', marks=pytest.mark.full)]
)
def test_the_runner_names_the_plugin_that_pytest_has_loaded(suite: Path, conftest: str) -> None:
    (suite / "conftest.py").write_text(conftest, "utf-8")
    assert "2 units: 2 passed" in run(suite, *HARNESS, "run", "--gpus", "sim:2")
