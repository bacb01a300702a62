"""A suite shaped like a real one, some of it misbehaving, run on pretended GPUs; and the checker that judges it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.runner.units import Outcome
from tests.support.verl_shaped.check import problems
from tests.support.verl_shaped.suite import Deed, Marking, ShapedFile, draw_suite, source_of

TESTS = Path(__file__).resolve().parents[1]
ROWS = json.loads((TESTS / "data" / "verl_suite.json").read_text("utf-8"))


def draw(seed: int = 1, num_files: int = 40) -> tuple[ShapedFile, ...]:
    return draw_suite(ROWS, num_files=num_files, num_gpus=8, scale=0.02, seed=seed)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_every_outcome_and_lease_is_right(tmp_path: Path) -> None:
    command = [sys.executable, str(TESTS / "benchmarks" / "verl_shaped.py"), "--files", "40", "--scale", "0.02"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "suite")],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "40 files" in done.stdout
    assert "lower bound" in done.stdout


def test_a_seed_is_a_suite() -> None:
    assert [source_of(file) for file in draw(1)] == [source_of(file) for file in draw(1)]
    assert draw(1) != draw(2)


@pytest.mark.parametrize("num_files", [40, 211])
def test_a_suite_has_every_deed_and_marking_and_the_widths_of_the_original(num_files: int) -> None:
    files = draw(3, num_files)
    assert {file.deed for file in files} == set(Deed)
    assert {file.marking for file in files} == set(Marking)
    assert len({file.path for file in files}) == num_files
    for width in (0, 1, 2, 4, 8):
        share = sum(row["gpus"] == width for row in ROWS) / len(ROWS)
        assert sum(file.gpus == width for file in files) / num_files == pytest.approx(share, abs=0.06)
    for file in files:
        compile(source_of(file), file.path, "exec")


def right_run(files: tuple[ShapedFile, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and notes of a run of `files`, one after another, with nothing wrong."""
    events: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for i, file in enumerate(files):
        runs = file.outcome is not Outcome.NOT_RUN
        gpus = [f"SIM-{gpu}" for gpu in range(file.gpus)] if runs else []
        if runs:
            events.append({"event": "attempt_started", "path": file.path, "gpu_ids": gpus})
        if file.is_collected and file.deed is not Deed.HAS_NO_TESTS:
            notes.append({"k": "begin", "file": file.path, "GPUs": gpus, "at_s": i})
            notes.append({"k": "end", "file": file.path, "at_s": i + 0.5})
        result = {
            "unit": {"path": file.path, "need": {"gpus": file.gpus}},
            "outcome": file.outcome.value,
            "reason": "",
            "gpu_ids": gpus,
            "tests": {"counts": dict(file.counts)},
            "left_behind": ["7 sleep"] if file.deed is Deed.LEAVES_CHILD else [],
            "collected_need": {"gpus": file.gpus} if file.is_collected else None,
        }
        events.append({"event": "lease_returned", "path": file.path, "gpu_ids": gpus})
        events.append({"event": "unit_finished", "result": result})
    return events, notes


Records = list[dict[str, Any]]
BREAKS: dict[str, Callable[[Records, Records, dict[str, Any]], object]] = {
    "lost": lambda events, _, passed: events.remove(next(each for each in events if each.get("result") is passed)),
    "told twice": lambda events, _, passed: events.append({"event": "unit_finished", "result": passed}),
    "unasked": lambda *all_: all_[2]["unit"].update(path="tests/test_of_nobody.py"),
    "wrong outcome": lambda *all_: all_[2].update(outcome="failed"),
    "wrong count": lambda *all_: all_[2]["tests"]["counts"].update(passed=99),
    "wrong plan": lambda *all_: all_[2]["unit"]["need"].update(gpus=7),
    "wrong lease": lambda *all_: all_[2].update(gpu_ids=all_[2]["gpu_ids"][1:]),
    "wrong collected need": lambda *all_: all_[2]["collected_need"].update(gpus=0),
    "unnamed child": lambda events, *_: next(
        each["result"] for each in events if each.get("result", {}).get("left_behind")
    ).update(left_behind=[]),
    "GPU leased twice": lambda events, _, passed: events.insert(
        0, {"event": "attempt_started", "path": "tests/other.py", "gpu_ids": passed["gpu_ids"]}
    ),
    "GPU not returned": lambda events, *_: events.remove(
        next(each for each in events if each["event"] == "lease_returned" and each["gpu_ids"])
    ),
    "quarantine": lambda events, *_: events.append(
        {"event": "gpu_quarantined", "path": "a", "gpu_id": "SIM-0", "reason": "memory"}
    ),
    "other GPU seen": lambda _, notes, __: next(each for each in notes if each.get("GPUs")).update(GPUs=["SIM-99"]),
    "lock held": lambda _, notes, __: notes.append({"k": "twice", "file": "a", "name": "SIM-0", "at_s": 0}),
    "too many at once": lambda _, notes, __: list(map(notes.remove, [each for each in notes if each["k"] == "end"])),
    "never began": lambda _, notes, __: notes.clear(),
}
"""What spoils one thing in a right run, of its events, its notes, and the result of a file that passed on GPUs."""


@pytest.mark.parametrize("how", BREAKS)
def test_the_checker_sees_what_is_wrong(how: str) -> None:
    files = draw()
    events, notes = right_run(files)
    assert problems(files, events, notes, num_gpus=8) == []
    finished = [event["result"] for event in events if event["event"] == "unit_finished"]
    BREAKS[how](events, notes, next(each for each in finished if each["outcome"] == "passed" and each["gpu_ids"]))
    assert problems(files, events, notes, num_gpus=8)
