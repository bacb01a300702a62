"""Run specs: orders that are written, what a program is given, directories that are refused."""

from pathlib import Path

import pytest

from harness.bits.errors import HarnessError
from harness.lab.experiments.preparation import prepare
from harness.recording.run_spec import RunSpec
from tests.support.file_limits import largest_file

ARGV = ("/venv/bin/python", "train.py", "--lr", "1e-3")


def test_a_directory_that_takes_no_file_is_left_to_the_next_command(tmp_path: Path) -> None:
    with largest_file(0), pytest.raises(HarnessError, match=r"run.json cannot be written: File too large") as caught:
        prepare(RunSpec(ARGV), tmp_path / "new", {})
    assert "--out" in caught.value.remedy
    assert not (tmp_path / "new").exists()
    prepare(RunSpec(ARGV), tmp_path / "new", {})
