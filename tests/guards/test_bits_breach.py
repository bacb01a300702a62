"""The guard of bits is red for a head that records less, computes another bit, or records nothing."""

import shutil
from pathlib import Path

import pytest

from tests.guards.bits import Case, compared, difference
from tests.guards.guard import ROOT

CASE = Case("grpo_sorting", where="for two steps", settings={"training.num_steps": "2"})
RECORDER, DECODER = "harness/recording/recorder.py", "rlcore/models/decoder.py"
SEEN = "        count = self._counts.get((seen.scope, phase, seen.name), 0)\n"

TRACES = ROOT / "tests" / "data" / "traces" / "recorded"


def test_values_of_the_base_are_compared_and_the_head_may_add_some() -> None:
    def problem(base: str, head: str) -> str:
        return difference(TRACES / base, TRACES / head)[0]

    assert difference(TRACES / "loop", TRACES / "loop-again") == ("", 0)
    assert problem("own", "own-more") == "" and difference(TRACES / "own", TRACES / "own-more")[1] > 0
    assert "absent in the head" in problem("own-more", "own")
    assert "logical backward" in problem("loop", "loop-gradient")
    assert problem("sums", "sums-seed").startswith("identity seed")
    assert problem("loop", "loop-shorter") and problem("ranks", "ranks-noise")


def breached(directory: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of this checkout with one text replaced."""
    for package in ("harness", "rlcore", "scenarios"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (directory / file).read_text("utf-8")
    assert text.count(old) == 1, f"{file} has changed: plant the breach elsewhere"
    (directory / file).write_text(text.replace(old, new), "utf-8")
    return directory


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (RECORDER, SEEN, f'        if phase == "backward":\n            return\n{SEEN}', "absent in the head"),
        (DECODER, "INITIAL_STD = 0.02", "INITIAL_STD = 0.021", "logical "),
        (
            "scenarios/grpo_sorting.yaml",
            "entry: rlcore.entrypoint:run",
            "entry: rlcore.gone:run",
            "the head ended with",
        ),
    ],
    ids=["a dropped value", "another bit", "a renamed entry"],
)
def test_a_breach_is_red(file: str, old: str, new: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    row = compared(CASE, tmp_path / "work", breached(tmp_path / "head", file, old, new))
    assert problem in row.problem
