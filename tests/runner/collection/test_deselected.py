"""`-k`, `-m` and `--deselect` are decided before anything is scheduled, as pytest decides them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.runner.collection.units import set_aside_deselected
from harness.runner.need import Need
from harness.runner.units import Outcome
from tests.support.collected import ROOT, collect_in
from tests.support.suite_runs import Done, run, write_suite

WORDS = ("fast", "slow", "wide", "deep")
SETTINGS = "[pytest]\nmarkers =\n    fast\n    slow\n    wide\n    deep\n"
TWO = "import pytest\n@pytest.mark.gpus(2)\ndef test_big(): pass\n@pytest.mark.gpus(1)\ndef test_small(): pass\n"

tests = st.tuples(st.sampled_from(WORDS), st.frozensets(st.sampled_from(WORDS)), st.integers(1, 2))
files = st.lists(st.lists(tests, max_size=4), min_size=1, max_size=3)
expressions = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: st.one_of(
        inner.map("not ({})".format),
        st.tuples(inner, inner).map(" and ".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) or {pair[1]}"),
    ),
    max_leaves=4,
)
arguments = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("-k", "-m")), expressions),
        st.integers(0, 2).map(lambda number: (f"--deselect=test_{number}.py",)),
    ),
    min_size=1,
    max_size=2,
).map(lambda found: tuple(word for words in found for word in words))


def marked(num_gpus: int) -> str:
    return f"import pytest\npytestmark = pytest.mark.gpus({num_gpus})\ndef test_x(): pass\n"


def file_text(tests: list[tuple[str, frozenset[str], int]]) -> str:
    """A file with a test for each: a word of its name, markers, number of parameters."""
    lines = ["import pytest"]
    for number, (word, markers, num_parameters) in enumerate(tests):
        lines += [f"@pytest.mark.{marker}" for marker in sorted(markers)]
        lines += [f"@pytest.mark.parametrize('n', range({num_parameters}))", f"def test_{word}_{number}(n): pass"]
    return "\n".join(lines) + "\n"


def selected_by_pytest(root: Path, args: tuple[str, ...]) -> set[str]:
    """Node ids that one plain pytest over all files selects."""
    argv = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *args)
    done = subprocess.run(
        argv, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_COLLECTED), done.stdout
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.full
@settings(max_examples=max(3, settings().max_examples // 10))
@given(files, arguments)
def test_the_selected_tests_are_those_of_one_plain_pytest(
    texts: list[list[tuple[str, frozenset[str], int]]], args: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "suite")
        root.mkdir()
        write_suite(root, {"pytest.ini": SETTINGS} | {f"test_{n}.py": file_text(each) for n, each in enumerate(texts)})
        wanted = selected_by_pytest(root, args)
        collected = set_aside_deselected(collect_in(root, pytest_args=args))
        assert {test.nodeid for file in collected.files.values() for test in file.tests or ()} == wanted
        num_tests = {f"test_{n}.py": sum(num for _, _, num in each) for n, each in enumerate(texts)}
        with_tests = {nodeid.partition("::")[0] for nodeid in wanted}
        deselected = {path: number for path, number in num_tests.items() if number and path not in with_tests}
        assert {path: result.num_deselected for path, result in collected.kept.items()} == deselected
        assert {unit.path for unit in collected.units} == num_tests.keys() - deselected.keys()


@pytest.mark.full
def test_a_file_needs_what_its_selected_tests_need(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": TWO})

    def need(*paths: str, pytest_args: tuple[str, ...] = ()) -> Need:
        (unit,) = collect_in(tmp_path, *paths, pytest_args=pytest_args).units
        return unit.need

    assert need() == Need(gpus=2)
    assert need(pytest_args=("-k", "small")) == Need(gpus=1)
    assert need("test_a.py::test_small") == Need(gpus=1)
    assert need("test_a.py::test_small", "test_a.py::test_big") == Need(gpus=2)
    assert collect_in(tmp_path, "test_a.py::test_sma").not_found.keys() == {"test_a.py"}


@pytest.mark.full
def test_files_that_may_end_otherwise_run(tmp_path: Path) -> None:
    files = {"test_empty.py": "", "test_broken.py": "import no_such\n"}
    files["test_skips.py"] = "import pytest\npytest.importorskip('surely_not_there')\n"
    collected = collect_in(write_suite(tmp_path, files), pytest_args=("-k", "nothing"))
    assert set_aside_deselected(collected).kept == {}
    assert {unit.path: unit.can_run for unit in collected.units}["test_broken.py"] is False


@pytest.mark.full
def test_a_table_decides_the_need_and_pytest_the_selection(tmp_path: Path) -> None:
    table = '[tool.rlharness.needs]\n"test_*.py" = 1\n'
    plain = {"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): pass\n"}
    done = run(write_suite(tmp_path, {"pyproject.toml": table, **plain}), "run", "--gpus", "sim:1", "-k", "test_b")
    assert done.outcomes == {"test_a.py": "no_tests", "test_b.py": "passed"}
    assert [event["path"] for event in done.of("attempt_started")] == ["test_b.py"]
    assert done.results["test_b.py"]["gpu_ids"] == ["SIM-0"]


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run on two GPUs of the small tests, beside which there are some that need more."""
    big = "import pytest\npytestmark = pytest.mark.gpus(8)\ndef test_a(): pass\ndef test_b(): pass\n"
    wide = TWO.replace("gpus(2)", "gpus(8)")
    cpu = "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_cpu(n): pass\n"
    texts = {"test_big.py": big, "test_wide.py": wide, "test_cpu.py": cpu, "test_broken.py": "import no_such\n"}
    directory = write_suite(tmp_path_factory.mktemp("selected"), texts)
    return run(directory, "run", "--gpus", "sim:2", "-k", "small", "--json")


@pytest.mark.full
def test_a_deselected_file_takes_no_lease_and_no_process(selected: Done) -> None:
    selected.assert_sound()
    assert selected.outcomes == {
        "test_big.py": "no_tests",
        "test_broken.py": "collect_error",
        "test_cpu.py": "no_tests",
        "test_wide.py": "passed",
    }
    assert [event["path"] for event in selected.of("attempt_started")] == ["test_wide.py"]
    assert selected.results["test_wide.py"]["unit"]["need"]["gpus"] == 1
    assert selected.results["test_big.py"]["directory"] == ""


def test_the_number_of_deselected_tests_is_reported(selected: Done) -> None:
    summary = json.loads(selected.stdout)
    assert summary["num_deselected"] == 6
    numbers = {unit["path"]: unit["num_deselected"] for unit in summary["units"]}
    assert numbers == {"test_big.py": 2, "test_broken.py": 0, "test_cpu.py": 3, "test_wide.py": 1}
    assert selected.results["test_big.py"]["reason"] == "2 tests deselected"
    assert ", 6 deselected; 2 files without a selected test\n" in selected.stderr


@pytest.mark.full
def test_files_without_a_selected_test_are_counted_and_not_listed(tmp_path: Path) -> None:
    one = {f"test_{n}.py": f"def test_{n}(): pass\n" for n in range(10)}
    for gpus in ("none", "sim:2"):
        done = run(write_suite(tmp_path, one), "run", "--gpus", gpus, "-k", "test_7")
        assert (done.code, set(done.outcomes.values())) == (ExitCode.OK, {"passed", "no_tests"})
        assert not [line for line in done.stdout.splitlines() if "test_3.py" in line]
        assert "  tests: 1 passed, 9 deselected; 9 files without a selected test\n" in done.stdout
        at_start = [line for line in done.stdout.splitlines() if "deselected       9 files without" in line]
        assert len(at_start) == 1


@pytest.mark.parametrize("gpus", ["sim:1", pytest.param("none", marks=pytest.mark.full)])
def test_a_run_in_which_nothing_is_selected_ends_as_pytest_does(tmp_path: Path, gpus: str) -> None:
    done = run(write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"}), "run", "--gpus", gpus, "-m", "nothing")
    assert (done.code, done.outcomes) == (ExitCode.NOTHING_COLLECTED, {"test_a.py": "no_tests"})
    assert done.results["test_a.py"]["num_deselected"] == 1
    assert done.of("attempt_started") == []


@pytest.mark.parametrize(
    "isolate",
    ["file", pytest.param("interpreter", marks=pytest.mark.full)],
)
def test_parts_of_a_file_count_a_deselected_test_once(tmp_path: Path, isolate: str) -> None:
    texts = "import pytest\n" + "".join(
        f"@pytest.mark.gpus({gpus})\ndef test_{name}(): pass\n" for name, gpus in [("a", 1), ("b", 2), ("left_out", 1)]
    )
    settings = "[pytest]\naddopts = -k 'not left_out'\n"
    done = run(
        write_suite(tmp_path, {"test_a.py": texts, "pytest.ini": settings}),
        "run",
        "--gpus=sim:2",
        f"--isolate={isolate}",
    )
    assert sorted(done.outcomes) == ["test_a.py [1/2]", "test_a.py [2/2]"]
    assert sum(result["num_deselected"] for result in done.results.values()) == 1
    assert set(done.outcomes.values()) == {Outcome.PASSED}


@pytest.mark.full
def test_a_file_of_which_tests_are_selected_runs_in_parts_by_need(tmp_path: Path) -> None:
    needs = [("one", 1), ("two", 2), ("sixteen", 16), ("left_out", 1)]
    text = "".join(f"@pytest.mark.gpus({gpus})\ndef test_{name}(): pass\n" for name, gpus in needs)
    suite = write_suite(tmp_path, {"test_a.py": f"import pytest\n{text}"})
    done = run(suite, "run", "--gpus=sim:2", "-k", "not left_out", "--allow-missing-gpus")
    assert done.outcomes == {
        "test_a.py [1/3]": "passed",
        "test_a.py [2/3]": "passed",
        "test_a.py [3/3]": "not_run",
    }
    assert sum(result["num_deselected"] for result in done.results.values()) == 1


@pytest.mark.full
def test_a_long_file_is_not_split_for_its_short_tests(tmp_path: Path) -> None:
    body = "import pytest, time\n@pytest.mark.gpus(1)\n@pytest.mark.parametrize('n', range(8))\n"
    suite = write_suite(
        tmp_path, {"test_a.py": f"{body}def test_slow(n): time.sleep(1.4)\n{body}def test_fast(n): pass\n"}
    )
    whole = run(suite, "run", "--gpus=sim:2")
    assert set(whole.outcomes.values()) == {"passed"}
    fast = run(suite, "run", "--gpus=sim:2", "-k", "test_fast")
    assert fast.outcomes == {"test_a.py": "passed"}
    slow = run(suite, "run", "--gpus=sim:2", "-k", "test_slow")
    assert slow.outcomes == {"test_a.py [1/2]": "passed", "test_a.py [2/2]": "passed"}
