"""Fills the file system of its TMPDIR to the last byte: FAILED. Does so only where that file system is small."""

import shutil
import tempfile
from pathlib import Path

import pytest

MAX_BYTES = 100_000_000


def test_fills_it() -> None:
    tmpdir = Path(tempfile.gettempdir())
    if shutil.disk_usage(tmpdir).total > MAX_BYTES:
        pytest.skip(f"{tmpdir} is on a large file system, which is not to be filled")
    with open(tmpdir / "filling", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1_000_000))


def test_needs_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
