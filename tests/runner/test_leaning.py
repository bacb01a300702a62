"""Files that lean on others: the outcome in a run."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.runner.attempts.leaning_check import MAX_CHECKS, files_before, passes_in
from harness.runner.need import Need
from harness.runner.report_file import TestEnd, TestOutcome, TestReport
from harness.runner.units import NeedSource, Unit
from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")

PLAIN = "def test_one(): pass\ndef test_two(): pass\n"
PATH = "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
FAULTS = {
    "global": (
        "import state\ndef test_one(): pass\ndef test_sets(): state.value = 3\ndef test_three(): pass\n",
        "import state\ndef test_reads(): assert state.value == 3\ndef test_other(): pass\n",
    ),
}


def suite(tmp_path: Path, fault: str) -> Path:
    leaned_on, leaning = FAULTS[fault]
    files = {f"tests/test_{name}.py": PLAIN for name in "abcdef"} | {"state.py": "value = None\nregistry = []\n"}
    files |= {"conftest.py": PATH, "tests/test_c.py": leaned_on, "tests/test_z.py": leaning}
    return write_suite(tmp_path / "suite", files)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_tells_a_leaning_file_from_a_failing_one(tmp_path: Path) -> None:
    directory = suite(tmp_path, "global")
    write_suite(directory, {"tests/test_y.py": "def test_bad(): assert 0\n"})
    done = run(directory, "run", "--gpus", "none", "--check-leaning", "--junit", "report.xml")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert (done.outcomes["tests/test_z.py"], done.outcomes["tests/test_y.py"]) == ("leaning", "failed")
    assert "passes after the 7 files before it" in done.results["tests/test_z.py"]["reason"]
    assert done.results["tests/test_z.py"]["tests"]["counts"] == {"passed": 1, "failed": 1}
    assert "incomplete" not in done.stdout + done.stderr
    assert "test_reads" in (directory / "report.xml").read_text()


@pytest.mark.full
def test_a_leaning_file_passes_with_a_session_fixture_in_conftest(tmp_path: Path) -> None:
    directory = suite(tmp_path, "global")
    assert run(directory, "run", "--gpus", "none", "tests/test_z.py").code == ExitCode.TESTS_FAILED
    fixture = "import pytest, state\n@pytest.fixture(scope='session', autouse=True)\ndef filled(): state.value = 3\n"
    write_suite(directory, {"conftest.py": PATH + fixture})
    assert run(directory, "run", "--gpus", "none", "tests/test_z.py").code == ExitCode.OK


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_leaning_file_that_the_configuration_accepts_is_no_failure(tmp_path: Path) -> None:
    directory = suite(tmp_path, "global")
    write_suite(directory, {"pyproject.toml": '[tool.rlharness]\ncheck-leaning = true\nleaning = "report"\n'})
    done = run(directory, "run", "--gpus", "none", "--junit", "report.xml", "--json", "--maxfail", "1")
    assert (done.code, done.outcomes["tests/test_z.py"]) == (ExitCode.OK, "leaning")
    summary = {unit["path"]: unit for unit in json.loads(done.stdout)["units"]}
    assert summary["tests/test_z.py"]["is_accepted"] is True
    assert "leaning on others, accepted (1)\n  tests/test_z.py: " in done.stderr
    root = ElementTree.parse(directory / "report.xml").getroot()
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    (skipped,) = root.iter("skipped")
    assert (skipped.get("type"), "passes after the " in str(skipped.get("message"))) == ("leaning", True)
    write_suite(directory, {"tests/test_bad.py": "def test_bad(): assert 0\n"})
    assert run(directory, "run", "--gpus", "none").code == ExitCode.TESTS_FAILED


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_file_that_has_passed_before_is_checked_only_on_demand(tmp_path: Path) -> None:
    directory = write_suite(
        tmp_path, {"test_a.py": "import os\ndef test(): os.environ['A'] = '1'\n", "test_z.py": PLAIN}
    )
    assert run(directory, "run", "--gpus", "none").code == 0
    write_suite(directory, {"test_z.py": "import os\ndef test_reads(): assert os.environ['A'] == '1'\n"})
    assert run(directory, "run", "--gpus", "none").outcomes["test_z.py"] == "failed"
    assert run(directory, "run", "--gpus", "none", "--check-leaning").outcomes["test_z.py"] == "leaning"
    write_suite(directory, {"pyproject.toml": "[tool.rlharness]\ncheck-leaning = true\n"})
    assert run(directory, "run", "--gpus", "none").outcomes["test_z.py"] == "leaning"
    assert run(directory, "run", "--gpus", "none", "--no-check-leaning").outcomes["test_z.py"] == "failed"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_makes_few_checks(tmp_path: Path) -> None:
    bad = "import os\ndef test_bad(): open('runs.txt', 'a').write('x'); assert 0\n"
    names = [f"test_{name}.py" for name in "bcdefg"]
    write_suite(tmp_path, {"test_a.py": PLAIN, **dict.fromkeys(names, bad)})
    done = run(tmp_path, "run", "--gpus", "none", "--cpu-units", "1", "--check-leaning")
    assert [done.outcomes[name] for name in names] == ["failed"] * len(names)
    assert len(list(done.record.glob("units/*/in_order"))) == MAX_CHECKS


READS_WHAT_ANOTHER_TEST_SET = """
import pytest
state = []
@pytest.mark.gpus(1)
def test_sets():
    state.append(1)
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(3))
def test_reads(n):
    assert state{}
"""


def test_a_part_that_needs_the_other_part_leans_and_its_file_is_not_split_again(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_s.py": READS_WHAT_ANOTHER_TEST_SET.format("")})
    split = run(tmp_path, "run", "--gpus", "sim:2")
    split.assert_sound()
    assert split.code == 0, split.stdout
    assert sorted(split.outcomes.values()) == ["leaning", "passed"]
    (leaning,) = [result for result in split.results.values() if result["outcome"] == "leaning"]
    assert "passes if the whole file runs in one process" in leaning["reason"]
    again = run(tmp_path, "run", "--gpus", "sim:2")
    assert (again.code, again.outcomes) == (0, {"test_s.py": "passed"})


@pytest.mark.full
def test_a_part_that_fails_in_its_whole_file_too_has_failed(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_s.py": READS_WHAT_ANOTHER_TEST_SET.format(" and n != 1")})
    done = run(tmp_path, "run", "--gpus", "sim:2")
    done.assert_sound()
    assert (done.code, sorted(done.outcomes.values())) == (1, ["failed", "passed"])


NEEDS_ALL_BEFORE_IT = """
import os, pytest
S = []
{mark}
@pytest.mark.parametrize("i", range({count}))
def test_i(i):
    S.append(i)
    {more}
    assert S == list(range(i + 1))
"""


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("count", "mark", "more", "options"),
    [
        (16, "", "", "--gpus none --cpu-units 8"),
        pytest.param(32, "@pytest.mark.gpus(1)", "", "--gpus sim:8", marks=pytest.mark.full),
        # A part whose tests kill their process outside the order.
        pytest.param(16, "", "len(S) > i or os._exit(3)", "--gpus none --cpu-units 8", marks=pytest.mark.full),
    ],
)
def test_one_whole_run_that_passes_settles_all_parts(
    tmp_path: Path, count: int, mark: str, more: str, options: str
) -> None:
    write_suite(tmp_path, {"test_s.py": NEEDS_ALL_BEFORE_IT.format(count=count, mark=mark, more=more)})
    done = run(tmp_path, "run", *options.split(), "--junit", "report.xml")
    done.assert_sound()
    assert done.code == 0, done.stdout + done.stderr
    assert len(done.outcomes) > MAX_CHECKS
    assert "leaning" in set(done.outcomes.values()) <= {"passed", "leaning"}
    assert len(list(done.record.glob("units/*/in_order"))) == 1
    root = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    assert sum(not len(case) for case in root.iter("testcase")) == count, "each test has passed once"
    assert sum(result["tests"]["counts"]["passed"] for result in done.results.values()) == count


@pytest.mark.full
@pytest.mark.timeout(200)
def test_one_whole_run_names_the_test_that_really_fails(tmp_path: Path) -> None:
    text = NEEDS_ALL_BEFORE_IT.format(count=16, mark="", more="assert i != 9, 'broken'")
    done = run(write_suite(tmp_path, {"test_s.py": text}), "run", "--gpus", "none", "--cpu-units", "8")
    done.assert_sound()
    assert (done.code, sorted(set(done.outcomes.values()))) == (1, ["failed", "leaning"])
    assert len(list(done.record.glob("units/*/in_order"))) == 1
    (failed,) = [result for result in done.results.values() if result["outcome"] == "failed"]
    assert failed["tests"]["counts"] == {"passed": 3, "failed": 1}
    assert "AssertionError: broken" in done.stdout
    assert "15 passed, 1 failed" in done.stdout


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_test_that_the_order_breaks_has_failed_although_its_part_passed(tmp_path: Path) -> None:
    text = """
import pytest, time
S = []
@pytest.mark.parametrize("i", range(16))
def test_i(i):
    S.append(i)
    time.sleep(3 * (i == 3))  # the other parts have passed by then
    assert i != 15 or 0 in S
    assert i != 5 or 0 not in S
"""
    done = run(write_suite(tmp_path, {"test_s.py": text}), "run", "--gpus", "none", "--cpu-units", "8")
    done.assert_sound()
    assert (done.code, len(done.outcomes)) == (1, 4)
    (failed,) = [result for result in done.results.values() if result["outcome"] == "failed"]
    assert failed["tests"]["counts"]["failed"] == 1
    assert "test_i[5]" in done.stdout


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_part_that_crashes_in_the_whole_file_too_has_crashed(tmp_path: Path) -> None:
    text = NEEDS_ALL_BEFORE_IT.format(count=16, mark="", more="i == 5 and os._exit(3)")
    done = run(write_suite(tmp_path, {"test_s.py": text}), "run", "--gpus", "none", "--cpu-units", "8")
    done.assert_sound()
    assert done.code == 1
    assert "crashed" in done.outcomes.values()
    assert len(list(done.record.glob("units/*/in_order"))) == 1


def test_files_that_need_more_than_the_lease_are_left_out() -> None:
    needed = {"a": 0, "b": 2, "c": 1, "z": 1, "zz": 0}
    units = [Unit(path, Need(gpus=gpus), NeedSource.IMPORT) for path, gpus in needed.items()]
    units.insert(2, Unit("bad", Need(), NeedSource.IMPORT, collect_error="x"))
    assert files_before(units, units[4]) == ("a", "c")


@given(
    st.dictionaries(st.sampled_from([f"{file}::t{n}" for file in "az" for n in "12"]), st.sampled_from(TestOutcome)),
    st.booleans(),
)
def test_only_the_tests_of_the_file_decide_and_all_of_them(outcomes: dict[str, TestOutcome], is_whole: bool) -> None:
    ends = {nodeid: TestEnd(outcome, 0.0, "", "") for nodeid, outcome in outcomes.items()}
    report = TestReport(nodeids=tuple(outcomes), ends=ends, finished_exit=1 if is_whole else None)
    mine = [outcome for nodeid, outcome in outcomes.items() if nodeid[0] == "z"]
    good = {TestOutcome.PASSED, TestOutcome.SKIPPED, TestOutcome.XFAILED, TestOutcome.XPASSED}
    assert passes_in(report, "z", ()) == (is_whole and bool(mine) and set(mine) <= good)
    assert not passes_in(report, "z", ["z::gone"])
