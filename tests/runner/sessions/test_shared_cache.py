"""pytest's cache of failed tests after a run: `pytest --lf` runs what failed in any of its processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
BOTH = "def test_good(): pass\ndef test_bad(): assert 0\n"
NAMES = [f"test_{letter}.py" for letter in "abcdef"]
MODES = ["file", "test", "worker", pytest.param("interpreter", marks=pytest.mark.full)]


def cached(suite: Path, name: str) -> list[str]:
    """Return the node ids in a file of pytest's cache; none if there is no such file."""
    path = suite / ".pytest_cache/v/cache" / name
    return sorted(json.loads(path.read_text())) if path.exists() else []


@pytest.mark.full
@pytest.mark.parametrize("isolate", MODES)
def test_pytest_knows_what_failed_in_any_process_of_the_run(tmp_path: Path, isolate: str) -> None:
    suite = write_suite(tmp_path, dict.fromkeys(NAMES, BOTH))
    run(suite, "run", "--gpus", "none", "--cpu-units", "2", "--isolate", isolate)
    assert cached(suite, "lastfailed") == [f"{name}::test_bad" for name in NAMES]
    for name in NAMES[1:]:
        (suite / name).write_text("def test_good(): pass\ndef test_bad(): pass\n")
    run(suite, "run", "--gpus", "none", "--cpu-units", "2", "--isolate", isolate)
    assert cached(suite, "lastfailed") == ["test_a.py::test_bad"]


@pytest.mark.full
def test_a_test_that_passes_is_removed_though_another_process_was_writing_when_this_one_began(tmp_path: Path) -> None:
    """pytest truncates the file before it writes: who reads it then finds no failure."""
    writes = "import pathlib\ndef test_bad():\n    pathlib.Path('.pytest_cache/v/cache/lastfailed').write_text({!r})\n"
    text = json.dumps({"test_b.py::test_bad": True, "test_c.py::test_bad": True})
    suite = write_suite(tmp_path, {"test_b.py": writes.format(text)})
    path = suite / ".pytest_cache/v/cache/lastfailed"
    path.parent.mkdir(parents=True)
    path.touch()
    assert run(suite, "run", "--gpus", "none").code == 0
    assert cached(suite, "lastfailed") == ["test_c.py::test_bad"]


@pytest.mark.full
def test_the_cache_of_plain_pytest_stays_where_nothing_changed(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {"test_a.py": BOTH, "test_b.py": "def test_b(): pass\n"})
    subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=suite, check=False, capture_output=True)
    before = cached(suite, "lastfailed"), cached(suite, "nodeids")
    assert before == (["test_a.py::test_bad"], ["test_a.py::test_bad", "test_a.py::test_good", "test_b.py::test_b"])
    (suite / "test_b.py").write_text("def test_b(): pass\ndef test_new(): pass\n")
    run(suite, "run", "--gpus", "none", "test_b.py")
    assert (cached(suite, "lastfailed"), cached(suite, "nodeids")) == before


@pytest.mark.full
def test_a_file_that_cannot_be_imported_is_known_until_it_can(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {"test_a.py": "1 / 0\n", "test_b.py": BOTH})
    run(suite, "run", "--gpus", "none", "--no-split")  # to split files, it would import them before the run
    assert cached(suite, "lastfailed") == ["test_a.py", "test_b.py::test_bad"]
    (suite / "test_a.py").write_text("def test_a(): pass\n")
    run(suite, "run", "--gpus", "none")
    command = [sys.executable, "-m", "pytest", "-q", "--lf"]
    again = subprocess.run(command, cwd=suite, capture_output=True, text=True, check=False)
    assert "1 failed" in again.stdout and "test_b.py::test_bad" in again.stdout


@pytest.mark.parametrize("isolate", ["file", pytest.param("worker", marks=pytest.mark.full)])
def test_a_cache_that_cannot_be_written_changes_no_outcome(tmp_path: Path, isolate: str) -> None:
    strict = "[pytest]\nfilterwarnings = error\n"
    suite = write_suite(tmp_path, {"test_a.py": BOTH, "pytest.ini": strict, ".pytest_cache": "a file\n"})
    done = run(suite, "run", "--gpus", "none", "--isolate", isolate)
    assert done.outcomes == {"test_a.py": "failed"}
    assert "pytest's cache of failed tests was not written: " in done.stdout


@pytest.mark.full
def test_a_run_without_the_plugin_that_keeps_the_cache_goes_on(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {"test_a.py": BOTH, "pytest.ini": "[pytest]\naddopts = -p no:cacheprovider\n"})
    assert run(suite, "run", "--gpus", "none").outcomes == {"test_a.py": "failed"}
    assert not (suite / ".pytest_cache").exists()
