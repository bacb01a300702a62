"""The scenario on the page of asynchronous GRPO is recorded, reported and run again up to a step, as any other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rlcore.asynchronous.test_page import BLOCKS

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
MEASURED = ["in_flight", "waiting", "versions_apart", "tokens_per_s", "discarded_share", "idle"]


def rlharness(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=os.environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_a_step_is_reproduced_and_a_report_shows_what_was_measured(tmp_path: Path) -> None:
    (text,) = [text for role, text in BLOCKS if not role]
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "async.yaml").write_text(text, "utf-8")
    rlharness(tmp_path, "train", "async", "--out", "run")
    told = rlharness(tmp_path, "reproduce", "run", "--step", "2")
    assert re.search(r"REPRODUCED +step 2: .*every bit; and every bit of the 2 steps before it", told), told
    rlharness(tmp_path, "report", "run", "--out", "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    shown = set(re.findall(r'"name": ?"(\w+: [\w/]+)"', page))
    assert {f"rollouts: {name}" for name in MEASURED} <= shown, shown
    assert {f"metrics: {name}" for name in ("masked", "tokens_per_s", "idle", "versions_apart")} <= shown
