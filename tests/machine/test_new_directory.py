"""The directory of a new attempt, whose name a test has taken."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process.scratch import make_new_directory


def directory_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "kept").write_text("mine")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def link_to_mine(path: Path) -> None:
    mine = path.parent / "mine"
    mine.mkdir()
    (mine / "0001").mkdir()
    path.symlink_to(mine)


@pytest.mark.parametrize("make", [directory_with_a_file, dangling, link_to_mine, os.mkfifo, Path.touch])
@pytest.mark.parametrize("name", ["units", "units/0001"])
def test_what_has_its_name_goes_aside_and_nothing_is_removed(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    new = tmp_path / "units" / "0001"
    taken = tmp_path / name
    taken.parent.mkdir(exist_ok=True)
    make(taken)
    before = os.lstat(taken)

    notes = make_new_directory(new, mode=0o700)

    assert (new.is_dir(), new.is_symlink(), new.parent.is_symlink(), os.listdir(new)) == (True, False, False, [])
    assert new.stat().st_mode & 0o777 == 0o700
    if name == "units" and make is directory_with_a_file:
        assert notes == [], "what leads to it may hold other directories"
        return
    (note,) = notes
    aside = taken.with_name(note.split()[-1])
    assert (os.lstat(aside).st_ino, os.lstat(aside).st_mode) == (before.st_ino, before.st_mode)
    if make is link_to_mine:
        assert os.listdir(taken.parent / "mine") == ["0001"], "a link is not followed"


def test_where_nothing_can_be_made_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_new_directory(tmp_path / "file" / "units" / "0001")
