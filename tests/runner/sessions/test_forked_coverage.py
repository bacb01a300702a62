"""Coverage of a suite that runs in forks: the lines and branches that plain pytest measures, no more and no fewer."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite_runs import environment, run, write_suite

coverage = pytest.importorskip("coverage", reason="pip install -e '.[tests]'")
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(240)]

LATE = "import pytest\npytest.skip('not here', allow_module_level=True)\nimport pkg.unused\n"
FILES = {
    "conftest.py": "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
    "import pkg.of_conftest\n",
    "pkg/__init__.py": "from pkg.base import add\n",
    "pkg/base.py": "import os\nif os.environ.get('NEVER'):\n    x = 1\nelse:\n    x = 2\n\n\ndef add(a, b):\n"
    "    if a > b:\n        return a + b\n    return b + a\n",
    "pkg/of_conftest.py": "y = 3\n\n\ndef unused():\n    return y\n",
    "pkg/lazy.py": "import sys\n\n\ndef value():\n    for n in range(2):\n        sys.intern(str(n))\n    return 3\n",
    "pkg/unused.py": "z = 4\n",
    "tests/test_a.py": "import pkg\ndef test_add(): assert pkg.add(1, 2) == 3\n"
    "def test_lazy():\n    import pkg.lazy\n    assert pkg.lazy.value() == 3\n",
    "tests/test_b.py": "import pkg\ndef test_add(): assert pkg.add(2, 1) == 3\n",
    "tests/test_d.py": LATE,
    "tests/test_e.py": LATE,
    "coverage.toml": '[tool.coverage.run]\nsource = ["pkg"]\nbranch = true\nparallel = true\n',
}
CRASHES = "import os, pkg.lazy\ndef test_crash(): pkg.lazy.value(); os.kill(os.getpid(), 9)\n"

COV = ("--cov=pkg", "--cov-branch")
Measured = dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...]]]


def measured(directory: Path) -> Measured:
    """Lines and branches by the name of the file."""
    data = coverage.CoverageData(str(directory / ".coverage"))
    data.read()
    names = sorted(data.measured_files())
    return {
        Path(name).name: (tuple(sorted(data.lines(name) or ())), tuple(sorted(data.arcs(name) or ()))) for name in names
    }


def call(directory: Path, *arguments: str, **env: str) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment(**env), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def by_pytest_cov(directory: Path) -> dict[str, str]:
    """The variables with which a run of `directory` loads pytest-cov."""
    pytest.importorskip("pytest_cov", reason="pip install -e '.[tests]'")
    return {"PYTEST_PLUGINS": "pytest_cov.plugin"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """What one pytest over the files measures that do not crash."""
    directory = write_suite(tmp_path_factory.mktemp("plain"), FILES)
    call(directory, "coverage", "run", "--rcfile=coverage.toml", "-m", "pytest", "tests")
    call(directory, "coverage", "combine", "--rcfile=coverage.toml")
    found = measured(directory)
    assert found["unused.py"] == ((), ())
    assert found["of_conftest.py"][0] == (1, 4)
    return found


ISOLATE = ["file", *(pytest.param(name, marks=pytest.mark.full) for name in ("interpreter", "test"))]


@pytest.mark.parametrize("isolate", ISOLATE)
def test_pytest_cov_measures_as_in_one_process(tmp_path: Path, plain: Measured, isolate: str) -> None:
    write_suite(tmp_path, {**FILES, "tests/test_crash.py": CRASHES})
    done = run(tmp_path, "run", "--gpus", "none", "--isolate", isolate, "--", *COV, env=by_pytest_cov(tmp_path))
    assert done.outcomes == {
        **{f"tests/test_{name}.py": "passed" for name in "abde"},
        "tests/test_crash.py": "crashed",
    }
    assert "interpreter of its own" not in done.stdout
    assert measured(tmp_path) == plain
    assert not list(done.record.glob("units/*/.coverage*")), "all of them were combined"


@pytest.mark.full
def test_process_start_measures_as_in_one_process(tmp_path: Path, plain: Measured) -> None:
    write_suite(tmp_path, {**FILES, "tests/test_crash.py": CRASHES})
    variable = {"COVERAGE_PROCESS_START": str(tmp_path / "coverage.toml")}
    done = run(tmp_path, "run", "--gpus", "none", env=variable)
    assert "interpreter of its own" not in done.stdout
    call(tmp_path, "coverage", "combine", "--rcfile=coverage.toml")
    assert measured(tmp_path) == plain


@pytest.mark.full
def test_a_threshold_does_not_fail_single_files_and_append_keeps_what_was_there(tmp_path: Path) -> None:
    write_suite(tmp_path, {**FILES, "tests/test_a.py": FILES["tests/test_b.py"]})
    env = by_pytest_cov(tmp_path)
    unchecked = run(tmp_path, "run", "--gpus", "none", "--", *COV, "--cov-fail-under=100", env=env)
    assert unchecked.code == 0
    (note,) = [note for note in unchecked.of("run_finished")[0]["notes"] if note.startswith("combined ")]
    assert note.endswith("; --cov-fail-under=100 was not checked: coverage report --fail-under=100 does")
    before = measured(tmp_path)
    assert before["lazy.py"] == ((), ())
    write_suite(tmp_path, FILES)
    assert run(tmp_path, "run", "tests/test_a.py", "--gpus", "none", "--", *COV, "--cov-append", env=env).code == 0
    after = measured(tmp_path)
    assert after["lazy.py"][0] and set(before["base.py"][0]) <= set(after["base.py"][0])
    assert run(tmp_path, "run", "tests/test_b.py", "--gpus", "none", "--", *COV, env=env).code == 0
    assert measured(tmp_path)["lazy.py"] == ((), ())
