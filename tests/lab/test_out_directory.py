"""Where the runs of a command go."""

import subprocess
from pathlib import Path

import pytest

from harness.bits.errors import HarnessError, UsageError
from harness.lab.experiment.preparation import OutDirectory, out_directory, prepare
from harness.recording.run_spec import RunSpec
from tests.support.file_limits import largest_file


def test_it_is_new_or_empty(tmp_path: Path) -> None:
    deep = tmp_path / "deep" / "er"
    assert out_directory(tmp_path, "deep/er", "replays", "id") == OutDirectory(deep, is_new=True)
    assert out_directory(tmp_path, "deep/er", "replays", "id") == OutDirectory(deep, is_new=False), "it is empty still"
    assert not (tmp_path / ".rlharness").exists()
    with pytest.raises(UsageError, match=r"deep is not empty\n  remedy: "):
        out_directory(tmp_path, "deep", "replays", "id")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"nothing can be written to .*file/x: Not a directory\n  remedy: "):
        out_directory(tmp_path, "file/x", "replays", "id")


@pytest.mark.parametrize("is_new", [True, False])
def test_only_what_a_command_has_made_is_taken_back(tmp_path: Path, *, is_new: bool) -> None:
    directory = tmp_path / "out"
    if not is_new:
        directory.mkdir()
    out = out_directory(tmp_path, "out", "replays", "id")
    (directory / "run-1").mkdir()
    (directory / "stdin").touch()
    out.remove_if_empty()
    assert (directory / "stdin").exists()
    out.give_back()
    assert (directory.exists(), list(tmp_path.rglob("*/*"))) == (not is_new, [])


def test_what_was_recorded_is_refused_with_the_command_that_removes_it(tmp_path: Path) -> None:
    for name in ("a run", "replays/run-1"):
        prepare(RunSpec(("python",)), tmp_path / name, {})
        with pytest.raises(UsageError) as refused:
            OutDirectory.take(tmp_path / name.partition("/")[0])
        command = refused.value.remedy.rpartition(": ")[2]
        subprocess.run(command, shell=True, check=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match=r"or delete what is there$"):
        OutDirectory.take(tmp_path)


def test_a_directory_that_takes_no_file_is_left_to_the_next_command(tmp_path: Path) -> None:
    with largest_file(0), pytest.raises(HarnessError, match=r"run.json cannot be written: File too large") as caught:
        prepare(RunSpec(("python",)), tmp_path / "new", {})
    assert "--out" in caught.value.remedy
    assert not (tmp_path / "new").exists()
    prepare(RunSpec(("python",)), tmp_path / "new", {})
