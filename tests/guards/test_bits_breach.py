"""The guard of bits is red for a head that records less, computes another bit, or records nothing."""

import shutil
from pathlib import Path

import pytest

from tests.guards.bits import Case, compared
from tests.guards.guard import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
CASE = Case("grpo_sorting", where="for two steps", settings={"training.num_steps": "2"})
RECORDER, DECODER = "harness/recording/recorder.py", "rlcore/models/decoder.py"
SEEN = "        count = self._counts.get((seen.scope, phase, seen.name), 0)\n"


def breached(directory: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of this checkout with one text replaced."""
    for package in ("harness", "rlcore", "scenarios"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (directory / file).read_text("utf-8")
    assert text.count(old) == 1, f"{file} has changed: plant the breach elsewhere"
    (directory / file).write_text(text.replace(old, new), "utf-8")
    return directory


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
