"""What is found out about plugins before the forks is what pytest finds itself; what changes is looked at again."""

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.sessions import plugin_facts
from harness.runner.sessions.plugin_facts import KnownFixtures, found_fixtures
from tests.support.suite_runs import ROOT, run, write_suite


@pytest.fixture
def a_fixture() -> int:
    return 1


def plain(x: int) -> int:
    return x


class WithFixture:
    @pytest.fixture
    def of_class(self) -> int:
        return 2

    def pytest_configure(self) -> None: ...


class Below(WithFixture):
    pass


class Without:
    def pytest_configure(self) -> None: ...


class Raises:
    def __get__(self, instance: object, owner: object) -> object:
        raise RuntimeError("not to be looked at")


VALUES = st.sampled_from([a_fixture, plain, 3, None, pytest, WithFixture, Raises(), "text", [1]])
MODULES = st.dictionaries(st.sampled_from(["a", "b", "_c", "pytest_x", "test_d"]), VALUES)


def module(values: dict[str, object]) -> ModuleType:
    made = ModuleType("made_here")
    vars(made).update(values)
    return made


@given(MODULES)
def test_a_module_is_replaced_by_one_with_the_same_fixtures(values: dict[str, object]) -> None:
    plugin = module(values)
    known = KnownFixtures()
    known.learn([plugin])
    short = known.short(plugin)
    assert found_fixtures(short) == found_fixtures(plugin)
    assert short is not plugin
    assert {name for name, value in vars(short).items() if not name.startswith("__")} == {
        name for name, value in values.items() if value is a_fixture
    }


@given(MODULES, st.sampled_from(["a", "new"]), VALUES)
def test_a_module_that_has_changed_is_scanned_again(values: dict[str, object], name: str, value: object) -> None:
    plugin = module(values)
    known = KnownFixtures()
    known.learn([plugin])
    is_same = name in values and values[name] is value
    setattr(plugin, name, value)
    assert (known.short(plugin) is plugin) is not is_same
    assert found_fixtures(known.short(plugin)) == found_fixtures(plugin)


def test_a_class_without_fixtures_is_replaced_and_one_with_a_fixture_is_not() -> None:
    known = KnownFixtures()
    known.learn([sys.modules[__name__]])
    assert vars(known.short(Without())).keys() == vars(ModuleType("")).keys()
    assert vars(known.short(Without)).keys() == vars(ModuleType("")).keys()
    for plugin in (WithFixture(), Below(), WithFixture):
        assert known.short(plugin) is plugin


def test_a_fixture_set_on_a_class_or_its_base_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base: ...

    class Plugin(Base): ...

    known, plugin = KnownFixtures(), Plugin()
    known.learn([plugin])
    assert known.short(plugin) is not plugin
    monkeypatch.setattr(Base, "late", a_fixture, raising=False)
    assert known.short(plugin) is plugin


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


@pytest.fixture
def counted() -> list[str]:
    reads: list[str] = []

    class Counted(Distribution):
        def read_text(self, filename: str) -> str | None:
            reads.append(filename)
            return "Name: counted\nVersion: 1.2\n" if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:
            return ROOT

    manager = pytest.PytestPluginManager()
    manager._plugin_distinfo.append((object(), Counted()))
    plugin_facts.read_metadata_once(manager)
    reads.clear()
    for _, dist in manager.list_plugin_distinfo():
        assert (dist.project_name, dist.version, dist.read_text("METADATA")) == (
            "counted",
            "1.2",
            "Name: counted\nVersion: 1.2\n",
        )
    return reads


def test_metadata_is_read_once(counted: list[str]) -> None:
    assert counted == ["METADATA"], "only the text that was asked for"
