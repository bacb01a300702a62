"""Files of reporters: the record of a run, line by line, and those that are written once, whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from harness.bits.errors import UsageError
from harness.bits.files import StrPath, replacing
from harness.runner.events import Event, RunFinished, to_json_line
from harness.runner.records.stats import RunState


class LateReporter:
    """Writes `path` once, whole or not at all, when the run has finished, or when it is closed before that.

    `text` makes what is written; `contents` names it ("the page"). A link is followed. A device, or a pipe that has a
    reader, is written to if it has the name before the run. Raises UsageError where the file cannot be made, OSError
    where it cannot be written in the end.
    """

    def __init__(self, path: Path, contents: str, text: Callable[[RunState, RunFinished | None], str]) -> None:
        if path.is_dir():
            raise UsageError(f"{contents} cannot be written to {path}: it is a directory", legal="a file")
        self._path = path.resolve()
        self._text: Callable[[RunState, RunFinished | None], str] | None = text
        self._state: RunState | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise _refusal(contents, path, error, "a file in a directory that can be written to") from error
        self._is_special = self._path.exists() and not self._path.is_file()

    def on_event(self, event: Event, state: RunState) -> None:
        """Write at the end."""
        self._state = state
        if isinstance(event, RunFinished):
            self._write(event)

    def close(self) -> None:
        """Write what is known of a run that never finished."""
        self._write(None)

    def _write(self, finished: RunFinished | None) -> None:
        make, self._text = self._text, None
        if make is not None and self._state is not None:
            data = make(self._state, finished).encode("utf-8", "backslashreplace")
            with open_as_named(self._path) if self._is_special else replacing(self._path, is_synced=True) as file:
                file.write(data)


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
