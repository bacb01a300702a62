"""Where the runs of a command go."""

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.lab.out_directory import NUM_KEPT, out_directory, place_of


def test_what_a_person_names_is_a_path_without_detours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert place_of(tmp_path, "a/./b") == tmp_path / "a" / "b"
    assert place_of(tmp_path / "x", "../a") == tmp_path / "a"
    assert place_of(tmp_path, "link") == tmp_path / "link", "a link is what was named"
    assert place_of(tmp_path, str(tmp_path / "other")) == tmp_path / "other"


def test_it_is_new_or_empty(tmp_path: Path) -> None:
    assert out_directory(tmp_path, "deep/er", "replays", "id") == tmp_path / "deep" / "er"
    assert out_directory(tmp_path, "deep/er", "replays", "id") == tmp_path / "deep" / "er", "it is empty still"
    assert not (tmp_path / ".rlharness").exists()
    with pytest.raises(UsageError, match=r"deep is not empty\n  legal:  .*\n  remedy: "):
        out_directory(tmp_path, "deep", "replays", "id")
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"nothing can be written to .*file/x: Not a directory\n  legal:  .*\n  remedy: "
    ):
        out_directory(tmp_path, "file/x", "replays", "id")


def test_without_a_name_the_last_ones_of_a_kind_are_kept(tmp_path: Path) -> None:
    made = [out_directory(tmp_path, None, "replays", f"id-{number:03}") for number in range(NUM_KEPT + 2)]
    other = out_directory(tmp_path, None, "chaos", "id-000")
    assert [path.exists() for path in made] == [False, False, *[True] * NUM_KEPT]
    assert made[-1] == tmp_path / ".rlharness" / "replays" / f"id-{NUM_KEPT + 1:03}"
    assert other.exists()
    assert (tmp_path / ".rlharness" / ".gitignore").read_text("utf-8") == "*\n"
