"""Files of an attempt, brought from its node to the run's directory while they grow.

    node: FilesOut follows report.jsonl and output.log, and sends everything else once the attempt has ended
    run:  FilesIn appends, each part where the one before ended

The report is followed by its descriptor, made before there are tests: what a test puts under its name is not sent.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harness.core.errors import NetworkError
from harness.core.regular_file import UNLIMITED, GrowingFile, open_for_writing
from harness.runner.cluster.messages import PART_BYTES, FilePart, from_data, to_data

FOLLOWED = ("report.jsonl", "output.log")
MAX_REST_BYTES = 1 << 28
"""Limit on the files that are sent at the end, each."""

SendPart = Callable[[FilePart], Awaitable[None]]


@dataclass(slots=True)
class FilesOut:
    """The node's side, for one attempt in `directory`."""

    directory: Path
    marker: str
    send: SendPart
    left_out: frozenset[str] = frozenset()
    """Names of files that came from the run."""
    _followed: dict[str, GrowingFile] = field(default_factory=dict)
    _sent: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Make the report, and follow what grows. OSError where it cannot be made."""
        self._followed = {name: GrowingFile(self.directory / name, max_bytes=UNLIMITED) for name in FOLLOWED}
        self._followed["report.jsonl"].make()

    async def send_new(self) -> None:
        """Send what the followed files have got since the last time."""
        for name, file in self._followed.items():
            while True:
                await self._send(name, file.read())
                if not file.is_behind:
                    break

    async def send_rest(self) -> None:
        """Send what is left, once the attempt has ended: of the followed files, and all others."""
        await self.send_new()
        for name in sorted(self._others()):
            file = GrowingFile(self.directory / name, max_bytes=MAX_REST_BYTES)
            try:
                while data := file.read():
                    await self._send(name, data)
            finally:
                file.close()

    def close(self) -> None:
        """Close the followed files."""
        for file in self._followed.values():
            file.close()

    async def _send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), PART_BYTES):
            part = data[at : at + PART_BYTES]
            offset = self._sent.get(name, 0)
            self._sent[name] = offset + len(part)
            await self.send(FilePart(self.marker, name, offset, to_data(part)))

    def _others(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = Path(folder, name)
                relative = path.relative_to(self.directory).as_posix()
                if relative not in self._followed and relative not in self.left_out and _is_plain(path):
                    yield relative


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_encodable(name: str) -> bool:
    """Return whether a file system has bytes for a name; JSON may hold halves of characters, and NUL."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


@dataclass(slots=True)
class FilesIn:
    """The run's side, for one attempt in `directory`, which is the run's own."""

    directory: Path
    _written: dict[str, int] = field(default_factory=dict)

    def write(self, part: FilePart) -> None:
        """Append one part.

        NetworkError for a name outside the directory, and a part that does not follow the one before. OSError where
        it cannot be written.
        """
        name = PurePosixPath(part.name)
        if name.is_absolute() or ".." in name.parts or not name.parts or not _is_encodable(part.name):
            raise NetworkError(f"the node sends the file {part.name!r}, which is outside the directory of its attempt")
        if part.offset != self._written.get(part.name, 0):
            raise NetworkError(f"the node sends byte {part.offset} of {part.name} out of turn")
        data = from_data(part.data)
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_for_writing(path, appends=True) as file:
            file.write(data)
        self._written[part.name] = part.offset + len(data)
