"""A hook is called once, right after its module has been imported, and the module is as it would have been."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.recording.boot_hooks import after_import


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the import path; what is imported from it, and hooks, are gone afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    finders, before = list(sys.meta_path), set(sys.modules)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_the_hook_comes_after_the_module_and_once(modules: Path) -> None:
    (modules / "hooked_one.py").write_text("import sys\nvalue = 1\n")
    seen: list[tuple[ModuleType, int]] = []
    after_import({"hooked_one": lambda module: seen.append((module, module.value))})
    module = imported("hooked_one")
    imported("hooked_one")
    assert seen == [(module, 1)]
    importlib.reload(module)
    assert len(seen) == 1


def test_a_module_that_is_there_is_hooked_at_once() -> None:
    seen: list[str] = []
    finders = list(sys.meta_path)
    after_import({"json": lambda module: seen.append(module.__name__)})
    sys.meta_path[:] = finders
    assert seen == ["json"]


def test_loader_spec_and_resources_are_those_of_an_unhooked_module(modules: Path) -> None:
    for name in ("hooked_two", "plain_two"):
        (modules / name).mkdir()
        (modules / name / "__init__.py").write_text("from . import part\n")
        (modules / name / "part.py").write_text("")
        (modules / name / "data.txt").write_text("data")
    after_import({"hooked_two": lambda module: None})
    hooked, plain = imported("hooked_two"), imported("plain_two")
    assert type(hooked.__loader__) is type(plain.__loader__)
    assert hooked.__spec__ is not None
    assert hooked.__spec__.loader is hooked.__loader__
    assert importlib.resources.files("hooked_two").joinpath("data.txt").read_text() == "data"


def test_a_module_that_fails_to_import_is_not_hooked_and_fails_as_before(modules: Path) -> None:
    (modules / "hooked_three.py").write_text("raise RuntimeError('as before')\n")
    after_import({"hooked_three": lambda module: pytest.fail("hooked")})
    with pytest.raises(RuntimeError, match="as before"):
        imported("hooked_three")
