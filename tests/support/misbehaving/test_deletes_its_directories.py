"""Deletes its working directory, and the TMPDIR that the runner made for it, under its own feet: PASSED."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest


def test_deletes_its_working_directory(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    os.chdir(directory)
    shutil.rmtree(directory)


def test_deletes_its_tmpdir() -> None:
    tmpdir = Path(tempfile.gettempdir())
    if "RLHARNESS_ATTEMPT" not in os.environ or not tmpdir.parent.name.startswith("rlh-"):
        pytest.skip(f"{tmpdir} was not made by rlharness, and may be everybody's")
    shutil.rmtree(tmpdir)
