"""Only regular files are read, as large and as deeply nested as they may be; who follows a link reads its file."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.regular_file import MAX_DEPTH, check_regular, open_regular, parse_object, read_regular

SPECIAL: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "nothing": lambda path: None,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [check_regular, open_regular, read_regular])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str, read: Callable[[Path], object]) -> None:
    SPECIAL[kind](path := tmp_path / "a")
    with pytest.raises(OSError):
        read(path)


def test_a_name_that_becomes_a_fifo_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(path := tmp_path / "a")
    monkeypatch.setattr("rlcore.regular_file.check_regular", lambda path: None)  # it was a file a moment ago
    errors: list[OSError] = []

    def read() -> None:
        try:
            open_regular(path)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert "not a regular file" in str(errors)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"content")
    (tmp_path / "a").symlink_to("blob")
    assert read_regular(tmp_path / "a") == b"content"


def test_a_file_may_have_as_many_bytes_as_are_allowed(tmp_path: Path) -> None:
    (path := tmp_path / "a").write_bytes(b"12345")
    assert read_regular(path, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, more than 4"):
        read_regular(path, max_bytes=4)


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
