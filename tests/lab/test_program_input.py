"""What a replay's runs read as their standard input: all of it or nothing, and nobody waits for it unknowingly."""

import os
import pty
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.experiments import preparation
from harness.lab.experiments.preparation import read_input


def read_pipe(data: bytes, said: list[str]) -> bytes:
    reader, writer = os.pipe()
    with open(reader, "rb") as file:
        with open(writer, "wb") as end:
            end.write(data)
        return read_input(file.fileno(), said.append)


def test_all_of_a_pipe_and_of_a_file_is_read(tmp_path: Path) -> None:
    said: list[str] = []
    assert read_pipe(b"one\ntwo", said) == b"one\ntwo"
    path = tmp_path / "texts"
    path.write_bytes(b"x" * 200_000)
    with path.open("rb", buffering=0) as file:
        file.read(1)
        assert len(read_input(file.fileno(), said.append)) == 199_999, "as a program would read it"
    assert said == []


def test_terminals_devices_and_what_is_closed_have_nothing() -> None:
    master, slave = pty.openpty()
    with open(master, "rb"), open(slave, "rb") as terminal, open(os.devnull, "rb") as null:
        os.write(master, b"typed\n")
        assert [read_input(file.fileno(), print) for file in (terminal, null)] == [b"", b""]
        closed = os.dup(null.fileno())
        os.close(closed)
        assert read_input(closed, print) == b""


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_BYTES", 4)
    assert read_pipe(b"1234", []) == b"1234"
    with pytest.raises(UsageError, match="more than 4 bytes"):
        read_pipe(b"12345", [])


def test_a_silent_pipe_is_waited_for_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PATIENCE_S", 0.0)
    reader, writer = os.pipe()
    said: list[str] = []

    def say_and_end(line: str) -> None:
        said.append(line)
        os.write(writer, b"late")
        os.close(writer)

    assert read_input(reader, say_and_end) == b"late"
    os.close(reader)
    assert len(said) == 1


def test_what_is_kept_of_an_input_is_for_its_user_alone(tmp_path: Path) -> None:
    kept = preparation.keep_input(b"data", tmp_path)
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (b"data", 0o600)
    assert preparation.keep_input(b"", tmp_path) == Path(os.devnull)
