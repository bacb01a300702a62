"""A file that takes its name when it is whole: readers see the earlier one or the new one, and no link is followed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.files import replacing, write_replacing
from tests.support.file_limits import largest_file


@given(chunks=st.lists(st.binary(max_size=300), max_size=8), breaks_after=st.integers(0, 8))
def test_a_reader_sees_the_earlier_file_or_the_whole_new_one(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], breaks_after: int
) -> None:
    directory = tmp_path_factory.mktemp("d")
    path = directory / "f"
    path.write_bytes(b"earlier")
    is_whole = breaks_after >= len(chunks)
    try:
        with replacing(path) as file:
            for number, chunk in enumerate(chunks):
                if number == breaks_after:
                    raise KeyboardInterrupt
                file.write(chunk)
                assert path.read_bytes() == b"earlier"
    except KeyboardInterrupt:
        assert not is_whole
    assert path.read_bytes() == (b"".join(chunks) if is_whole else b"earlier")
    assert os.listdir(directory) == ["f"]


def test_links_beside_it_and_in_its_place_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)  # the one name that cannot be guessed
    (tmp_path / f".rlharness-{'00' * 8}.new").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_replacing(tmp_path / "page.html", "new")
    assert (precious.read_text(), (tmp_path / "page.html").exists()) == ("precious", False)
    monkeypatch.undo()
    (tmp_path / "page.html").symlink_to(precious)
    write_replacing(tmp_path / "page.html", "new")
    assert (precious.read_text(), (tmp_path / "page.html").is_symlink()) == ("precious", False)
    assert (tmp_path / "page.html").read_text() == "new"


def test_a_full_disk_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"earlier")
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_replacing(path, b"x" * 5000)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"earlier", ["f"])


def test_it_has_the_mode_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_replacing(tmp_path / "f", "text")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode
