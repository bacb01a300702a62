"""The guard is red where the engine has lost a check."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards import faults
from tests.guards.guard import ROOT, Context, Row, carry_out
from tests.guards.planted import workers
from tests.guards.planted.fault import named

pytestmark = pytest.mark.full
LOST = 'def check_written(step: "Step") -> None:\n'
FAULTS = ("targets_of_each_minibatch", "completed_first_served_first")


@pytest.mark.timeout(600)
def test_a_fault_whose_check_is_lost_is_red_and_another_is_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("harness", "tests"):
        (checkout / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "rlcore", checkout / "rlcore", ignore=shutil.ignore_patterns("__pycache__"))
    checks = checkout / "rlcore" / "checks.py"
    text = checks.read_text("utf-8")
    assert text.count(LOST) == 1
    checks.write_text(text.replace(LOST, f"{LOST}    return\n"), "utf-8")
    monkeypatch.setattr(workers, "ROOT", checkout)

    def guard(context: Context) -> Iterator[Row]:
        return faults.tried([named(name) for name in FAULTS], 0, context.work)

    said: list[str] = []
    result = carry_out("faults", guard, Context(True, tmp_path / "work"), said.append)
    assert [row.name for row in result.rows if row.problem] == ["targets_of_each_minibatch"], said
    assert result.red[0].endswith("and by engine when it was frozen")
