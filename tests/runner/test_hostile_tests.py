"""No test stalls a run: a few files of the full size, `python tests/benchmarks/hostile_tests.py --files 200`."""

from pathlib import Path

import pytest

from tests.benchmarks.hostile_tests import measure, wrong_results
from tests.support.hostile_tests import ENDS, HARMS, PLACES, draw

pytestmark = [pytest.mark.full, pytest.mark.timeout(280)]
NUM_FILES = 12


def test_a_run_ends_and_the_files_beside_hostile_ones_have_their_outcomes(tmp_path: Path) -> None:
    result = measure(tmp_path, NUM_FILES, seed=30)
    assert "supervisor_stopped" in {each.harm for each in result.hostile}, "the one that had stalled it"
    assert result.faults == [], result.done.stdout[-3000:]
    result.done.assert_sound()
    results = result.done.results
    for name in ("test_honest_0.py", result.hostile[0].name):
        without = {path: each for path, each in results.items() if path != name}
        assert wrong_results(without, result.hostile, NUM_FILES) == [f"{name}: None"], "a lost outcome is seen"
    passed = {**results, "test_honest_1.py": {**results["test_honest_1.py"], "outcome": "passed"}}
    assert wrong_results(passed, result.hostile, NUM_FILES) == ["test_honest_1.py: passed"]


def test_every_harm_comes_before_one_comes_again() -> None:
    drawn = draw(2 * len(HARMS), 3)
    assert {each.harm for each in drawn[: len(HARMS)]} == set(HARMS) == {each.harm for each in drawn[len(HARMS) :]}
    assert len({each.name for each in drawn}) == len(drawn)
    assert draw(5, 3) == drawn[:5] != draw(5, 4)
    for each in draw(len(HARMS) * len(PLACES) * len(ENDS), 0):
        compile(each.text, each.name, "exec")
