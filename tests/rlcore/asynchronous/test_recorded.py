"""The scenario on the page of asynchronous GRPO is recorded and run again up to a step, as any other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rlcore.asynchronous.test_page import BLOCKS

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def rlharness(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=os.environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_a_step_is_reproduced(tmp_path: Path) -> None:
    (text,) = [text for role, text in BLOCKS if not role]
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "async.yaml").write_text(text, "utf-8")
    rlharness(tmp_path, "train", "async", "--out", "run")
    told = rlharness(tmp_path, "reproduce", "run", "--step", "2")
    assert re.search(r"REPRODUCED +step 2: .*every bit; and every bit of the 2 steps before it", told), told
