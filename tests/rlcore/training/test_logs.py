"""What a run writes and shows."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.config import OutputSection
from rlcore.log import RunLog


def test_a_run_that_told_nothing_leaves_nothing(tmp_path: Path) -> None:
    """So that a directory can be named again after an error that came before the first step."""
    log = RunLog(tmp_path / "run", OutputSection(), stream=io.StringIO())
    log.phase("warm start", 10)
    log.advance(loss=0.5)
    log.close()

    assert list(tmp_path.iterdir()) == []


def test_steps_go_to_lines_and_to_the_board(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = RunLog(tmp_path / "run", OutputSection(tensorboard=True), stream=io.StringIO())
    log.step(0, {"loss": 0.5, "reward_mean": float("nan")})
    log.step(1, {"loss": 0.25})
    log.close()

    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 0, "loss": 0.5, "reward_mean": None},
        {"step": 1, "loss": 0.25},
    ]
    assert any((tmp_path / "run" / "tensorboard").iterdir())


def test_steps_are_numbered_as_in_the_records(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = RunLog(tmp_path / "run", OutputSection(), stream=stream)
    log.phase("training", 2)
    log.advance(loss=0.5)
    log.advance(loss=0.25)
    log.close()
    assert stream.getvalue().splitlines() == [
        "training: step 0 (1 of 2), loss=0.5",
        "training: step 1 (2 of 2), loss=0.25",
    ]


@pytest.mark.full
def test_the_engine_is_imported_without_the_packages_of_its_extras() -> None:
    code = "import rlcore.entrypoint, sys; print(sys.modules.keys() & {'tensorboard', 'pyarrow', 'ray'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
