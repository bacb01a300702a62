"""Full disks, failing writers and kills at any byte: the checkpoint before is left, and read."""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from rlcore.checkpoint import save, write_state
from rlcore.errors import CheckpointError
from tests.rlcore.training.small_checkpoints import names, saved, step_read
from tests.support.recorded_programs import run

# ------------------------------------------------------------------------------------------------ what disks do


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    def write(path: Path) -> None:
        with open("/dev/full", "wb") as full:
            full.write(b"weights")

    with pytest.raises(CheckpointError, match=r"checkpoint of step 2 cannot be written.*No space left") as caught:
        save(tmp_path, 2, {}, {"policy": write}, keep=1)
    assert str(tmp_path) in caught.value.remedy
    assert names(tmp_path) == ["step-000001"]
    assert step_read(tmp_path) == 1


def test_a_write_that_is_cut_short_leaves_the_old_one(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match="checkpoint of step 2 cannot be written"):
            save(tmp_path, 2, {}, {"state": lambda path: write_state(path, {"a": torch.zeros(4096)}, None)}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000001"]
    assert step_read(tmp_path) == 1


def test_a_writer_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    def write(path: Path) -> None:
        raise KeyError("tokenizer")

    with pytest.raises(KeyError):
        save(tmp_path, 2, {}, {"policy": write}, keep=1)
    assert step_read(tmp_path) == 1
    saved(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-000003"]


def test_a_place_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "run", 1, {}, {}, keep=1)


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine that loses its power would keep cannot be seen here; what it is asked to keep can."""
    events: list[str] = []
    flush, rename = os.fsync, os.rename

    def seen_flush(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    def seen_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", seen_flush)
    monkeypatch.setattr(os, "rename", seen_rename)
    path = saved(tmp_path, 1)
    named = events.index("rename")
    partial = tmp_path / "step-000001.partial"
    whole = {str(partial / each.relative_to(path)) for each in [path, *path.rglob("*")]}
    assert set(events[:named]) == whole
    assert events[named - 1] == str(partial), "the directory after what it names"
    assert events[named + 1] == str(tmp_path)


def killed(*options: str) -> dict[str, dict[str, int]]:
    """In memory where there is such a place: what a killed process has written is there without a disk."""
    where = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=where if where.is_dir() else None) as directory:
        done = run(sys.executable, "-m", "tests.rlcore.training.killed_saves", directory, *options)
    assert done.exit_code == 0, done.errors
    told: dict[str, dict[str, int]] = json.loads(done.output)
    return told


@pytest.mark.full
def test_a_kill_at_any_moment_leaves_a_whole_one() -> None:
    for told in killed("--num-drawn", "8").values():
        assert told.get("lost", 0) == 0
        assert told["files"] > 15 and told["killed"] > told["files"]
        assert told["old"] > 10 and told["new"] > 2


@pytest.mark.full
def test_without_the_renames_a_kill_loses_it() -> None:
    told = killed("--num-drawn", "0", "--naive")
    assert told["same step"]["lost"] >= 3
    assert told["next step"].get("lost", 0) == 0, "the checksums alone hold this one"
