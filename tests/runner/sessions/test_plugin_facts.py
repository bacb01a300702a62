"""What is found out about plugins before the forks is what pytest finds itself; what changes is looked at again."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.runner.sessions.plugin_facts import KnownFixtures, found_fixtures
from tests.support.suite_runs import run, write_suite


def test_every_plugin_of_this_pytest_is_as_pytest_finds_it(request: pytest.FixtureRequest) -> None:
    plugins = [each for each in request.config.pluginmanager.get_plugins() if isinstance(each, ModuleType)]
    known = KnownFixtures()
    known.learn(plugins)
    short = [known.short(plugin) for plugin in plugins]
    assert [found_fixtures(each) for each in short] == [found_fixtures(each) for each in plugins]
    assert sum(each is not plugin for each, plugin in zip(short, plugins, strict=True)) > len(plugins) / 2


LATE = """
import pytest
class Late:
    @pytest.fixture
    def of_instance(self):
        return "instance"
def pytest_configure(config):
    import helpers_of_suite
    helpers_of_suite.set_late = pytest.fixture(lambda: "set late", name="set_late")
    config.pluginmanager.register(Late(), "late")
"""
FILES = {
    "conftest.py": 'pytest_plugins = ["helpers_of_suite"]\n' + LATE,
    "helpers_of_suite.py": "import pytest\n@pytest.fixture\ndef in_module(): return 'module'\n",
    "test_fixtures.py": "def test_all(in_module, of_instance, set_late, tmp_path, monkeypatch, capsys, caplog):\n"
    "    assert (in_module, of_instance, set_late) == ('module', 'instance', 'set late')\n",
}


@pytest.mark.full
def test_fixtures_that_a_suite_sets_before_its_session_are_found_in_forks(tmp_path: Path) -> None:
    write_suite(tmp_path, {**FILES, "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n'})
    done = run(tmp_path, "run", "--gpus", "none", "--isolate", "file")
    assert done.code == 0, done.stdout


@pytest.mark.full
def test_the_header_of_a_fork_names_the_plugins_as_pytest_does(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): assert False\n"})
    autoload = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    done = run(tmp_path, "run", "--gpus", "none", "--isolate", "file", env=autoload)
    command = [sys.executable, "-m", "pytest", "test_a.py"]
    plain_run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **autoload}, capture_output=True, text=True, check=False
    )
    headers = [re.findall(r"^plugins: (.*)$", text, re.MULTILINE) for text in (done.stdout, plain_run.stdout)]
    named = [{plugin for line in found for plugin in line.split(", ")} for found in headers]
    assert named[0] == named[1] and len(named[0]) > 3
