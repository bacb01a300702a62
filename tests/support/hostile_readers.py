"""A reader of files or messages of others, with documents that it understands, and how to hand it data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Reader:
    """One reader."""

    name: str
    documents: tuple[bytes, ...]
    """What it understands."""
    read: Read
    """Reads data; the directory is empty and may be written to."""
    errors: tuple[type[Exception], ...] = ()
    """What it may raise."""


def of_text(read: Callable[[str], object]) -> Read:
    """Read data as text."""
    return lambda data, directory: read(data.decode("utf-8", "replace"))


@dataclass(frozen=True)
class OfFile:
    """Reads a directory in which the data stands in a file, with others beside it."""

    name: str
    read: Callable[[Path], object]
    beside: Mapping[str, bytes]

    def __call__(self, data: bytes, directory: Path) -> object:
        write_files(directory, {**self.beside, self.name: data})
        return self.read(directory)

    def read_another(self, directory: Path, make: Callable[[Path], None]) -> object:
        """Read the directory after `make` has put something else under the name of the file."""
        path = directory / self.name
        write_files(directory, {**self.beside, self.name: b""})
        path.unlink()
        make(path)
        return self.read(directory)


def of_file(name: str, read: Callable[[Path], object], beside: Mapping[str, bytes] | None = None) -> OfFile:
    """Read a directory in which the data stands in the file `name`, with others beside it."""
    return OfFile(name, read, beside or {})


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their names, in directories below if these have some."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def json_lines(*records: Mapping[str, Any]) -> bytes:
    """Records as JSON, one a line."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)
