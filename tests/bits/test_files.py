"""Files that another process may have replaced: what is opened, how much is read, and that nothing is waited for."""

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits import files as regular_file
from harness.bits.files import (
    CHUNK_BYTES,
    MAX_DEPTH,
    POLL_BYTES,
    check_regular,
    open_for_writing,
    open_regular,
    parse_object,
    read_regular,
    read_text,
)
from harness.process.growing_file import GrowingFile, GrowingLines

LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12)
CUTS = st.lists(st.integers(0, 200), max_size=8)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "a socket": listening,
}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A path that a socket can have."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory, "x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [open_regular, read_regular, read_text, lambda path: GrowingFile(path).read()])
def test_what_is_no_regular_file_is_named_and_not_waited_for(
    short_path: Path, kind: str, use: Callable[[Path], object]
) -> None:
    KINDS[kind](short_path)
    with pytest.raises(OSError, match=f"it is {kind}, not a regular file") as caught:
        use(short_path)
    assert caught.value.filename == str(short_path)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_into_what_is_no_regular_file(short_path: Path, kind: str) -> None:
    KINDS[kind](short_path)
    for appends in (False, True):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            open_for_writing(short_path, appends=appends)


def test_links_are_followed_only_where_that_is_wanted_and_only_to_regular_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert read_regular(tmp_path / "link", follows_links=True) == b"text"
    with pytest.raises(OSError, match="it is a symbolic link"):
        read_regular(tmp_path / "link")
    check_regular(tmp_path / "link")
    for use in (check_regular, lambda path: open_regular(path, follows_links=True)):
        with pytest.raises(OSError, match="it is a device"):
            use(tmp_path / "endless")


def test_a_file_beyond_the_limit_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, max_bytes=4)
    os.truncate(path, 6 << 30)
    with pytest.raises(OSError, match="more than 268,435,456 bytes"):
        read_regular(path)


@given(lines=LINES, rest=st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), cuts=CUTS, data=st.data())
def test_however_a_file_grows_each_line_is_given_once_but_those_beyond_a_limit(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rest: bytes, cuts: list[int], data: st.DataObject
) -> None:
    written = b"".join(line + b"\n" for line in lines) + rest
    max_line_bytes, max_bytes = data.draw(st.sampled_from([(5, 1000), (1000, 30), (1000, 1000)]))
    path = tmp_path_factory.getbasetemp() / "grows"
    path.write_bytes(b"")
    with closing(GrowingFile(path, max_bytes=max_bytes)) as file:
        reader, seen = GrowingLines(file, max_line_bytes=max_line_bytes), []
        for cut in [*sorted(cuts), len(written)]:
            path.write_bytes(written[:cut])
            seen += reader.poll()
        readable = written[:max_bytes].split(b"\n")[:-1]
        assert seen == [line for line in readable if len(line) <= max_line_bytes]
        assert reader.poll() == []
        assert len(readable) - len(seen) <= reader.num_left_out <= len(readable) - len(seen) + (len(rest) > 5)
        assert bool(file.excess) == (len(written) > max_bytes)


def test_one_poll_reads_a_limited_amount_and_says_that_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (POLL_BYTES + 1))
    with closing(GrowingFile(path)) as file:
        assert len(file.read()) == POLL_BYTES
        assert file.is_behind
        assert len(file.read()) == 1
        assert not file.is_behind


def test_of_an_endless_line_no_more_is_held_than_a_line_may_have(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with closing(GrowingFile(path, max_bytes=regular_file.UNLIMITED)) as file, path.open("wb") as writer:
        reader = GrowingLines(file, max_line_bytes=2 * CHUNK_BYTES)
        for _ in range(8):
            writer.write(bytes(CHUNK_BYTES))
            writer.flush()
            assert reader.poll() == []
        writer.write(b"\nshort\n")
        writer.flush()
        assert (reader.poll(), reader.num_left_out) == ([b"short"], 1)


def test_a_file_that_shrinks_gives_nothing_until_it_has_grown_again(tmp_path: Path) -> None:
    path = tmp_path / "shrinks"
    path.write_bytes(b"first\nsecond\n")
    with closing(GrowingFile(path)) as file:
        reader = GrowingLines(file)
        assert reader.poll() == [b"first", b"second"]
        os.truncate(path, 0)
        assert reader.poll() == []
        path.write_bytes(b"first\nsecond\nthird\n")
        assert reader.poll() == [b"third"]


def test_what_is_put_in_the_place_of_a_file_is_named_and_the_file_put_back(tmp_path: Path) -> None:
    path = tmp_path / "report"
    file = GrowingFile(path)
    assert file.replaced_by == ""
    file.make()
    path.write_bytes(b"line\n")
    assert file.replaced_by == ""
    path.rename(tmp_path / "kept")
    assert file.replaced_by == "nothing"
    path.write_bytes(b"")
    assert file.replaced_by == "another file"
    path.unlink()
    os.mkfifo(path)
    assert file.replaced_by == "a FIFO"
    assert file.read() == b"line\n"
    file.put_back()
    assert read_regular(path) == b"line\n"
    assert [each.name for each in tmp_path.iterdir() if each.name != "kept"] == ["report"]
    file.close()


def test_a_file_that_is_there_already_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    (tmp_path / "report").symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        GrowingFile(tmp_path / "report").make()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values))
def test_an_object_is_parsed_as_json_does(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


def nested(depth: int, opened: str, closed: str) -> bytes:
    return f'{{"a": {opened * (depth - 1)}1{closed * (depth - 1)}}}'.encode()


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ("[0, ", "]")])
def test_an_object_may_be_as_deep_as_is_allowed(opened: str, closed: str) -> None:
    assert "a" in parse_object(nested(MAX_DEPTH, opened, closed))
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels deep"):
            parse_object(nested(depth, opened, closed))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b'"a"', b"null", b"{", b"\xff", b'{"a": 1} x', b'{"a": ' + b"9" * 9999]
)
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_object(content)
