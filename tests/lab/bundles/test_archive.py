"""Bundles as files: read back as they were written, and whatever else a file may be, refused by a typed error."""

import stat
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import BundleError
from harness.lab.experiments.bundle import HEAD, Content, Head, checksums, open_bundle, write_bundle
from tests.support.traces import SEEDED

CONTENTS = {
    "call.json": b'{"entry": "a:b"}\n',
    "manifest.json": b"{}\n",
    "rank-0.log": bytes(range(256)) * 3,
    "checkpoints/step-000002/policy/model.safetensors": b"weights" * 40,
    "tensors/rank-0-step-3.safetensors": b"",
}


def written(directory: Path, contents: Mapping[str, Content] = CONTENTS) -> Path:
    path = directory / "a.rlb"
    write_bundle(path, Head(3, 2, checksums(contents)), contents)
    return path


def unpacked(path: Path, directory: Path) -> dict[str, bytes]:
    """Every file that unpacking has made, wherever below the directory's parent it lies."""
    open_bundle(path).unpack(directory / "inner")
    found = (each for each in directory.rglob("*") if each.is_file() or each.is_symlink())
    return {each.relative_to(directory / "inner").as_posix(): each.read_bytes() for each in found}


def test_what_was_written_is_read_and_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = written(tmp_path / "a")
    file = tmp_path / "weights"
    file.write_bytes(CONTENTS["rank-0.log"])
    second = written(tmp_path / "b", {**dict(reversed(list(CONTENTS.items()))), "rank-0.log": file})
    assert first.read_bytes() == second.read_bytes()
    assert unpacked(first, tmp_path / "c") == CONTENTS
    assert open_bundle(first).read("call.json") == CONTENTS["call.json"]
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["a.rlb"]


def whole() -> bytes:
    with TemporaryDirectory() as directory:
        return written(Path(directory)).read_bytes()


WHOLE = whole()


def refused_or_equal(data: bytes) -> None:
    with TemporaryDirectory() as name:
        outer = Path(name)
        path = outer / "a.rlb"
        path.write_bytes(data)
        with suppress(BundleError):
            assert unpacked(path, outer / "out" / "of") == CONTENTS
        assert {each.name for each in outer.iterdir()} <= {"a.rlb", "out"}, "nothing is written elsewhere"


@SEEDED
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 7))
def test_a_bit_that_is_flipped_is_seen_or_does_not_matter(at: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= 1 << bit
    refused_or_equal(bytes(data))


@SEEDED
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=30))
def test_what_is_cut_replaced_or_put_in_is_seen_or_does_not_matter(start: int, end: int, put: bytes) -> None:
    refused_or_equal(WHOLE[:start] + put + WHOLE[end:])


# ------------------------------------------------------------------------------------------------- made to do harm


def forged(path: Path, *, change: Callable[[zipfile.ZipInfo], bytes | None], names: tuple[str, ...] = ()) -> Path:
    """A bundle whose head is right for what is in it, each member changed as `change` says, with further members."""
    contents = {**CONTENTS, **dict.fromkeys(names, b"x")}
    head = Head(3, 2, checksums(dict(contents)))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {HEAD: head.encoded(), **contents}.items():
            info = zipfile.ZipInfo(name)
            archive.writestr(info, change(info) or data)
    return path


def as_it_is(info: zipfile.ZipInfo) -> None:
    return None


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "/tmp/evil", "checkpoints/step-000002/../../../../evil", "evil.py", "checkpoints\\evil", "C:evil"),
        *("call.json/", "checkpoints/step-000002/..", "..", "unfinished/call.json"),
    ],
)
def test_no_member_leads_out_or_is_of_another_kind(tmp_path: Path, name: str) -> None:
    path = forged(tmp_path / "a.rlb", change=as_it_is, names=(name,))
    with pytest.raises(BundleError):
        open_bundle(path).unpack(tmp_path / "inner")
    assert not (tmp_path / "inner").exists()


def test_links_packed_and_encrypted_members_are_refused(tmp_path: Path) -> None:
    def link(info: zipfile.ZipInfo) -> bytes | None:
        if info.filename == "manifest.json":
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return None

    def packed(info: zipfile.ZipInfo) -> bytes | None:
        if info.filename == "rank-0.log":
            info.compress_type = zipfile.ZIP_DEFLATED
        return None

    for number, change in enumerate((link, packed)):
        with pytest.raises(BundleError, match="compressed, encrypted, or not a file"):
            open_bundle(forged(tmp_path / f"{number}.rlb", change=change))


def test_a_member_that_would_grow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.rlb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEAD, Head(0, None, checksums({"call.json": b"0" * 10**7})).encoded())
        archive.writestr("call.json", b"0" * 10**7)
    assert path.stat().st_size < 10**5
    with pytest.raises(BundleError, match=r"compressed|larger than the file"):
        open_bundle(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("call.json", b"another")
    with pytest.raises(BundleError, match="two members have the same name"):
        open_bundle(path)


def test_members_that_the_head_does_not_name_or_names_otherwise_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("curve.jsonl", b"more")
    with pytest.raises(BundleError, match=r"differ from those in its bundle\.json"):
        open_bundle(path)
    other = {**CONTENTS, "call.json": b"x" * len(CONTENTS["call.json"])}
    write_bundle(path, Head(3, 2, checksums(CONTENTS)), other)
    with pytest.raises(BundleError, match=r"call\.json is damaged"):
        open_bundle(path).read("call.json")
    with pytest.raises(BundleError, match=r"call\.json is damaged"):
        open_bundle(path).unpack(tmp_path / "inner")


def test_a_file_in_the_way_of_a_directory_is_a_typed_error(tmp_path: Path) -> None:
    names = ("checkpoints/step-000002/a.json", "checkpoints/step-000002/a.json/b.json")
    with pytest.raises(BundleError):
        open_bundle(forged(tmp_path / "a.rlb", change=as_it_is, names=names)).unpack(tmp_path / "inner")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.rlb"):
        with pytest.raises(BundleError):
            open_bundle(path)


def test_a_bundle_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        write_bundle(path, Head(3, 2, {}), {**CONTENTS, "curve.jsonl": tmp_path / "none"})
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.rlb"]
