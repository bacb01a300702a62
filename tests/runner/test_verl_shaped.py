"""A suite shaped like a real one, some of it misbehaving, run on pretended GPUs; and the checker that judges it."""

import json
import subprocess
import sys
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


def break_run(how: str, events: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
    """Spoil one thing in a right run."""
    finished = [event["result"] for event in events if event["event"] == "unit_finished"]
    started = [event for event in events if event["event"] == "attempt_started" and event["gpu_ids"]]
    passed = next(result for result in finished if result["outcome"] == "passed" and result["gpu_ids"])
    match how:
        case "lost":
            events[:] = [event for event in events if event.get("result") is not passed]
        case "told twice":
            events.append({"event": "unit_finished", "result": passed})
        case "unasked":
            passed["unit"]["path"] = "tests/test_of_nobody.py"
        case "wrong outcome":
            passed["outcome"] = "failed"
        case "wrong count":
            passed["tests"]["counts"]["passed"] += 1
        case "wrong plan":
            passed["unit"]["need"]["gpus"] += 1
        case "wrong lease":
            passed["gpu_ids"] = passed["gpu_ids"][1:]
        case "wrong collected need":
            passed["collected_need"]["gpus"] = 0
        case "unnamed child":
            next(result for result in finished if result["left_behind"])["left_behind"] = []
        case "GPU leased twice":
            events.insert(0, {**started[0], "path": "tests/other.py"})
        case "GPU not returned":
            events[:] = [event for event in events if event["event"] != "lease_returned"]
        case "quarantine":
            events.append({"event": "gpu_quarantined", "path": "a", "gpu_id": "SIM-0", "reason": "memory"})
        case "other GPU seen":
            next(note for note in notes if note.get("GPUs"))["GPUs"] = ["SIM-99"]
        case "lock held":
            notes.append({"k": "twice", "file": "a", "name": "SIM-0", "at_s": 0})
        case "too many at once":
            notes[:] = [note for note in notes if note["k"] != "end"]
        case "never began":
            notes.clear()


@pytest.mark.parametrize(
    "how",
    [
        "lost",
        "told twice",
        "unasked",
        "wrong outcome",
        "wrong count",
        "wrong plan",
        "wrong lease",
        "wrong collected need",
        "unnamed child",
        "GPU leased twice",
        "GPU not returned",
        "quarantine",
        "other GPU seen",
        "lock held",
        "too many at once",
        "never began",
    ],
)
def test_the_checker_sees_what_is_wrong(how: str) -> None:
    files = draw()
    events, notes = right_run(files)
    assert problems(files, events, notes, num_gpus=8) == []
    break_run(how, events, notes)
    assert problems(files, events, notes, num_gpus=8)
