"""The discovery child: which files it finds is what pytest itself collects from, and no test module is imported."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
Record = dict[str, Any]

TELLING = "import pathlib\npathlib.Path(__file__).with_suffix('.imported').touch()\ndef test_a(): pass\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def pytest_in(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=root, env=env, check=False, capture_output=True, text=True, timeout=120)


def discover(root: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], list[Record]]:
    out = root / "found.jsonl"
    plugins = ("-p", "harness.plugin", "-p", "harness.runner.collection.discovery")
    result = pytest_in(root, *plugins, f"--rlharness-discover={out}", *args)
    return result, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def found(root: Path, *args: str) -> list[str]:
    result, records = discover(root, *args)
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, result.stdout + result.stderr
    assert not list(root.rglob("*.imported"))
    return [path for path, *_ in records[-1]["files"]]


def collected(root: Path, *args: str) -> list[str]:
    """Files that plain pytest collects tests from."""
    lines = pytest_in(root, *args).stdout.splitlines()
    for marker in root.rglob("*.imported"):
        marker.unlink()
    return list(dict.fromkeys(line.partition("::")[0] for line in lines if "::" in line))


SUITE = {
    "tests/test_a.py": TELLING,
    "tests/b_test.py": TELLING,
    "tests/helper.py": TELLING,
    "tests/check_c.py": TELLING,
    "tests/pkg/__init__.py": TELLING,
    "tests/pkg/test_d.py": TELLING,
    "tests/pkg/deep/__init__.py": TELLING,
    "tests/pkg/deep/test_e.py": TELLING,
    "tests/space in name/test_f.py": TELLING,
    "tests/node_modules/test_g.py": TELLING,
    "tests/build/test_h.py": TELLING,
    "other/test_i.py": TELLING,
    "other/conftest.py": "collect_ignore = ['test_ignored.py']\ncollect_ignore_glob = ['*_no.py']\n",
    "other/test_ignored.py": TELLING,
    "other/test_no.py": TELLING,
    "notes.txt": ">>> 1 + 1\n2\n",
    "test_text.txt": ">>> 1 + 1\n2\n",
    "source.py": "'''\n>>> 1 + 1\n2\n'''\n" + TELLING,
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("ini", "args"),
    [
        ("", ()),
        pytest.param("", ("tests",), marks=pytest.mark.full),
        pytest.param("", ("other", "tests/pkg"), marks=pytest.mark.full),
        ("", ("tests/test_a.py", "tests/helper.py")),
        pytest.param("", ("tests/pkg/deep/test_e.py", "tests/pkg"), marks=pytest.mark.full),
        ("", ("other/test_ignored.py",)),
        ("", ("--ignore=tests/pkg", "--ignore-glob=*/test_i*")),
        ("", ("--doctest-modules", "--doctest-glob=*.txt", "--ignore=tests", "--ignore=other")),
        pytest.param("", ("--import-mode=importlib",), marks=pytest.mark.full),
        ("testpaths = other", ()),
        pytest.param("python_files = check_*.py", (), marks=pytest.mark.full),
        pytest.param("python_files = *.py", ("tests/pkg",), marks=pytest.mark.full),
        pytest.param("norecursedirs = pkg", (), marks=pytest.mark.full),
        pytest.param("addopts = --ignore=other -p no:cacheprovider", (), marks=pytest.mark.full),
        ("addopts = -k nothing_is_called_so -m 'not slow'\nmarkers = slow", ("--deselect", "tests")),
    ],
)
def test_the_files_are_those_that_pytest_collects_from(tmp_path: Path, ini: str, args: tuple[str, ...]) -> None:
    write(tmp_path, {**SUITE, "pytest.ini": f"[pytest]\n{ini}\n"})
    plain = args if "-k" not in ini else (*args[2:], "-o", "addopts=")
    assert found(tmp_path, *args) == collected(tmp_path, *plain)


def test_items_of_other_collectors_are_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "conftest.py": """
                import pytest
                def pytest_collect_file(file_path, parent):
                    if file_path.suffix == ".yaml":
                        return Yaml.from_parent(parent, path=file_path)
                class Yaml(pytest.File):
                    def collect(self):
                        raise AssertionError("asked")
            """,
            "test_it.yaml": "",
            "test_it.py": "",
        },
    )
    assert found(tmp_path) == ["test_it.py", "test_it.yaml"]


def test_files_below_a_conftest_that_uses_the_marker_are_to_be_imported(tmp_path: Path) -> None:
    adding = """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.gpus(2))
    """
    write(tmp_path, {"a/conftest.py": adding, "a/deep/test_a.py": TELLING})
    write(tmp_path, {"b/conftest.py": "num_gpus = 8", "b/test_b.py": TELLING})
    _, records = discover(tmp_path)
    assert [why for _, _, why, _ in records[-1]["files"]] == ["a/conftest.py mentions gpus", ""]


@pytest.mark.full
def test_every_file_is_to_be_imported_where_a_plugin_uses_the_marker(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "conftest.py": "pytest_plugins = ['marking']",
            "marking.py": "import pytest\nBIG = pytest.mark.gpus(8)",
            "tests/test_a.py": TELLING,
        },
    )
    _, records = discover(tmp_path)
    assert records[-1]["files"][0][2] == "marking.py mentions gpus"


def test_nothing_is_written_into_the_suite(tmp_path: Path) -> None:
    junk = "--junitxml=junk.xml --lf --cache-clear"
    write(tmp_path, {"pytest.ini": f"[pytest]\naddopts = {junk}", "test_a.py": TELLING, ".pytest_cache/kept": ""})
    before = {path.name for path in tmp_path.iterdir()}
    assert found(tmp_path) == ["test_a.py"]
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__", "found.jsonl"} == before
    assert [path.name for path in (tmp_path / ".pytest_cache").iterdir()] == ["kept"]


@pytest.mark.full
def test_files_that_failed_last_time_are_not_the_only_ones(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"pytest.ini": "[pytest]", "test_a.py": "import surely_not_there", "test_b.py": "def test_b(): pass"},
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, env=env, check=False, capture_output=True)
    last = tmp_path / ".pytest_cache/v/cache/lastfailed"
    before = last.read_text()
    assert found(tmp_path, "--lf") == ["test_a.py", "test_b.py"]
    assert last.read_text() == before


@pytest.mark.full
def test_the_digest_of_a_file_is_the_same_in_every_process_until_something_changes(tmp_path: Path) -> None:
    write(tmp_path, {"pytest.ini": "[pytest]", "a/conftest.py": "", "a/test_a.py": TELLING, "test_b.py": TELLING})

    def digests() -> list[str]:
        (tmp_path / "found.jsonl").unlink(missing_ok=True)
        return [digest for *_, digest in discover(tmp_path)[1][-1]["files"]]

    first = digests()
    assert digests() == first
    write(tmp_path, {"a/conftest.py": "# changed"})
    changed = digests()
    assert (changed[0] != first[0], changed[1]) == (True, first[1])
    write(tmp_path, {"pytest.ini": "[pytest]\npython_functions = check_*"})
    assert not {*digests()} & {*changed}
