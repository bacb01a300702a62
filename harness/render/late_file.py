"""A file that a reporter writes once, when the run has finished: the whole text or nothing."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from harness.bits.errors import UsageError
from harness.bits.files import StrPath, replacing


class LateFile:
    """A path that can be written to, checked before the run begins.

    A device, or a pipe that has a reader, is written to if it has the name then. Whatever a test puts there later is
    replaced, and never opened: a FIFO without a reader would keep the run from ending.

    `contents` names what is written ("the page"). Raises UsageError where the file cannot be made.
    """

    def __init__(self, path: Path, contents: str) -> None:
        if path.is_dir():
            raise UsageError(f"{contents} cannot be written to {path}: it is a directory", legal="a file")
        self.path = path = path.resolve()
        """With links followed: a link stays, and the file that it leads to is written."""
        self._special: int | None = None
        """Descriptor that holds the device or the pipe, without opening it; None for any other file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent):
                pass
            if path.exists() and not path.is_file():
                self._special = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(
                f"{contents} cannot be written to {path}: {error.strerror}",
                legal="a file in a directory that can be written to",
                remedy="choose another file, or make room or permission there",
            ) from error

    def write(self, text: str) -> None:
        """Write the text. Raises OSError."""
        with self.opened() as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Yield the file, once; it takes its name when the block ends. Raises OSError."""
        if self._special is None:
            with replacing(self.path, is_synced=True) as file:
                yield file
            return
        try:
            with open_as_named(f"/proc/self/fd/{self._special}") as file:
                yield file
        finally:
            os.close(self._special)


def open_as_named(path: StrPath) -> BinaryIO:
    """Open for writing what a person has named, through links, a device or a pipe too, without waiting for a reader.

    A regular file is made if there is none, and emptied if there is one. OSError, also for a pipe without a reader.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "it is a pipe that no process reads, or a socket", os.fspath(path)) from None
    os.set_blocking(fd, True)
    return os.fdopen(fd, "wb")
