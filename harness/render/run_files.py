"""Files of reporters: the record of a run, line by line, and those that are written once, whole or not at all."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from harness.bits.errors import UsageError
from harness.bits.files import StrPath, replacing
from harness.runner.events import Event, RunFinished, to_json_line
from harness.runner.records.stats import RunState


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
            raise _refusal(contents, path, error, "a file in a directory that can be written to") from error

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


class LateReporter:
    """Writes `path` when the run has finished, or when it is closed before that.

    `text` makes what is written; `contents` names it. Raises UsageError where the file cannot be made, OSError where it
    cannot be written in the end.
    """

    def __init__(self, path: Path, contents: str, text: Callable[[RunState, RunFinished | None], str]) -> None:
        self._file = LateFile(path, contents)
        self._text = text
        self._state: RunState | None = None
        self._is_written = False

    def on_event(self, event: Event, state: RunState) -> None:
        """Write at the end."""
        self._state = state
        if isinstance(event, RunFinished):
            self._write_once(state, event)

    def close(self) -> None:
        """Write what is known of a run that never finished."""
        if self._state is not None:
            self._write_once(self._state, None)

    def _write_once(self, state: RunState, finished: RunFinished | None) -> None:
        if not self._is_written:
            self._is_written = True
            self._write(state, finished)

    def _write(self, state: RunState, finished: RunFinished | None) -> None:
        text = self._text(state, finished).encode("utf-8", "backslashreplace")
        with self._file.opened() as file:
            file.write(text)


class JsonlReporter:
    """Writes a line per event with one system call each, so that a reader of the growing file sees whole lines.

    Raises UsageError where the file cannot be made, OSError where it cannot be written later.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_as_named(path)
        except OSError as error:
            raise _refusal("events", path, error, "a file that can be written") from error

    def on_event(self, event: Event, state: RunState) -> None:
        """Append the event; text that is not Unicode is kept as JSON's own escapes."""
        left = memoryview(to_json_line(event).encode("utf-8", "backslashreplace") + b"\n")
        while left:  # a nearly full disk takes a part, and raises at the next
            left = left[os.write(self._file.fileno(), left) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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


def _refusal(contents: str, path: Path, error: OSError, legal: str) -> UsageError:
    said = f"{contents} cannot be written to {path}: {error.strerror}"
    return UsageError(said, legal=legal, remedy="choose another file, or make room or permission there")
