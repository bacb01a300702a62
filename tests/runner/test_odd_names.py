"""Files whose names pytest takes for node ids as soon as they are arguments: `test_[1].py`, `test_a::b.py`."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.suite_runs import QUICK, run, write_suite

BRACKETS, COLONS, BELOW = "te st/test_[1].py", "te st/test_a::b.py", "odd[2]/test_c.py"
HALF = "import pytest\n@pytest.mark.gpus(2)\ndef test_wide(): pass\n" + QUICK


def num(result: dict[str, Any], outcome: str) -> int:
    """Number of tests of a unit with an outcome."""
    return int(result["tests"]["counts"].get(outcome, 0))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    conftest = "import pytest\n@pytest.fixture\ndef number(): return 1\n"
    fails = "def test_bad(number): assert number == 2\n" + QUICK
    values = "import pytest\n@pytest.mark.parametrize('value', ['a::b', 'c'])\ndef test_value(value): pass\n"
    files = {BRACKETS: fails, "te st/conftest.py": conftest, COLONS: QUICK + fails, BELOW: values, "test_d.py": QUICK}
    return write_suite(tmp_path, files)


OUTCOMES = {BRACKETS: "failed", COLONS: "failed", BELOW: "passed", "test_d.py": "passed"}


@pytest.mark.parametrize(
    "mode",
    ["file", *(pytest.param(mode, marks=pytest.mark.full) for mode in ("test", "interpreter"))],
)
def test_oddly_named_files_run_as_in_plain_pytest(suite: Path, mode: str) -> None:
    done = run(suite, "run", "--gpus", "none", "--isolate", mode, "--retries", "1")
    done.assert_sound()
    assert done.outcomes == OUTCOMES
    assert {path: num(each, "failed") for path, each in done.results.items() if num(each, "passed")} == {
        path: int(outcome == "failed") for path, outcome in OUTCOMES.items()
    }
    again = run(suite, "run", "--gpus", "none", "--isolate", mode, "--lf")
    assert again.outcomes == {path: outcome for path, outcome in OUTCOMES.items() if outcome == "failed"}
    assert [num(each, "passed") for each in again.results.values()] == [0, 0]


@pytest.mark.full
def test_oddly_named_files_and_their_tests_can_be_named(suite: Path) -> None:
    named = [f"{BRACKETS}::test_quick", COLONS, f"{BELOW}::test_value[a::b]"]
    done = run(suite, "run", "--gpus", "none", *named)
    assert done.outcomes == {BRACKETS: "passed", COLONS: "failed", BELOW: "passed"}
    assert {path: num(each, "passed") for path, each in done.results.items()} == dict.fromkeys(
        (BRACKETS, COLONS, BELOW), 1
    )


@pytest.mark.full
def test_needs_of_oddly_named_files_are_those_of_their_selected_tests(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {BRACKETS: HALF, COLONS: HALF})
    whole = run(suite, "run", "--gpus", "sim:2", "--no-split")
    assert [unit["need"]["gpus"] for event in whole.of("collection_finished") for unit in event["units"]] == [2, 2]
    part = run(suite, "run", "--gpus", "sim:2", f"{BRACKETS}::test_quick", f"{COLONS}::test_wide")
    assert part.code == 0
    needs = [unit["need"]["gpus"] for event in part.of("collection_finished") for unit in event["units"]]
    assert needs == [0, 2]


@pytest.mark.full
def test_the_tests_of_an_oddly_named_file_run_in_parts(tmp_path: Path) -> None:
    done = run(
        write_suite(tmp_path, {BRACKETS: f"{HALF}@pytest.mark.gpus(1)\ndef test_narrow(): pass\n"}),
        "run",
        "--gpus",
        "sim:2",
    )
    assert done.outcomes == {f"{BRACKETS} [1/2]": "passed", f"{BRACKETS} [2/2]": "passed"}
    assert sum(num(each, "passed") for each in done.results.values()) == 3
