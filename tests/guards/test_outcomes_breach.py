"""The guard of outcomes is red for a runner that invents or loses an outcome, leaves a process or lends a GPU twice."""

from collections import Counter
from pathlib import Path

import pytest

from tests.guards import outcomes
from tests.guards.guard import ROOT
from tests.support.hostile_tests import draw
from tests.support.misbehaving import expected

LYING_RUNNER = """
import os, re, subprocess, sys
from pathlib import Path
command, env = [sys.executable, "-m", "harness", *sys.argv[1:]], os.environ | {{"PYTHONPATH": {real!r}}}
junit = Path(sys.argv[sys.argv.index("--junit") + 1])
beside = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) if {lie!r} == "lends a GPU twice" else None
done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
match {lie!r}:
    case "invents the outcome of a file":
        done.stdout = re.sub('"outcome": "crashed"', '"outcome": "passed"', done.stdout)
    case "invents the outcome of a test":
        junit.write_text(re.sub("<error[^>]*unfinished.*?</error>|<error[^>]*unfinished[^>]*/>", "", junit.read_text()))
    case "loses a test":
        junit.write_text(re.sub('<testcase[^>]*name="test_passes"[^>]*/>', "", junit.read_text()))
    case "exits with 0":
        done.returncode = 0
    case "leaves a process":
        subprocess.Popen(["sleep", "600"], env={{}}, start_new_session=True)
if beside:
    beside.wait()
sys.stdout.write(done.stdout)
sys.exit(done.returncode)
"""
CRASHED = "crashed: test_never_runs passed, test_passes passed, test_segfaults unfinished"
LIES = {
    "": set[str](),
    "invents the outcome of a file": {f"lies test_segfaults.py: {CRASHED.replace('crashed', 'passed')!r}"},
    "invents the outcome of a test": {
        f"lies test_segfaults.py: {CRASHED.replace('unfinished', 'passed')!r}",
        "lies test_ignores_sigterm.py: 'timed_out: test_hangs passed'",
    },
    "loses a test": {f"lies test_segfaults.py: {CRASHED.replace(', test_passes passed', '')!r}"},
    "exits with 0": {"lies: exit code: 0 instead of 1"},
    "leaves a process": {"lies: nothing left: sleep 600"},
    "lends a GPU twice": {"lies: no GPU leased twice: SIM-0 by test_ignores_sigterm.py::test_hangs"},
}
"""What a runner does -> what the guard finds."""


@pytest.mark.full
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_runner_is_found(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "first" / "harness"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(LYING_RUNNER.format(real=str(ROOT), lie=lie))
    monkeypatch.setattr(outcomes, "ROOT", package.parent)
    paths = ("test_segfaults.py", "test_ignores_sigterm.py")
    options = ("--gpus", "sim:1", "--timeout", "6", "--grace", "1")
    rows = [*outcomes.misbehaving("lies", paths, *options).compare(tmp_path)]
    assert len(rows) >= len(paths) + 2
    assert {f"{row.name}: {row.problem.partition('; frozen')[0]}" for row in rows if row.problem} == LIES[lie]


def test_every_file_is_frozen_as_its_table_has_it() -> None:
    table = (
        expected.EXPECTED
        | expected.EXPECTED_WITH_RAY
        | expected.EXPECTED_ON_A_SMALL_TMPDIR
        | expected.EXPECTED_WITH_A_DRIVER
    )
    hostile = {each.name for each in draw(outcomes.NUM_HOSTILE, outcomes.SEED)}
    frozen = {path: ways for path, ways in outcomes.frozen_files().items() if path not in outcomes.HONEST_FILES}
    assert set(frozen) == {*table, *hostile}
    for path, row in table.items():
        [signature] = frozen[path]
        outcome, _, tests = signature.partition(": ")
        counts = Counter(test.rpartition(" ")[2] for test in filter(None, tests.split(", ")))
        assert (outcome, counts) == (row.outcome, row.tests), path


def test_a_test_that_differs_from_plain_pytest_is_named(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/><testcase classname="a" name="y">'
        '<skipped type="pytest.xfail"/></testcase><testcase classname="a" name="z"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    plain = outcomes.read_tests(tmp_path / "junit.xml")
    assert plain == {("a::x", "passed"): 1, ("a::y", "xfailed"): 1, ("a::z", "failed"): 1}
    assert outcomes.compare_tests(plain, plain) == ""
    assert outcomes.compare_tests(plain + Counter([("a::x", "passed")]), plain) == "only rlharness: a::x passed"
    assert outcomes.compare_tests(plain - Counter([("a::y", "xfailed")]), plain) == "only pytest: a::y xfailed"
    assert outcomes.compare_tests(Counter(), Counter()) == "pytest ran no test"
