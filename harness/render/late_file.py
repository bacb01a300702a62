"""A file that a reporter writes once, when the run has finished: the whole text or nothing."""

from pathlib import Path
from tempfile import NamedTemporaryFile

from harness.core.errors import UsageError
from harness.core.replaced_file import write_replacing


class LateFile:
    """A path that can be written to, checked before the run begins.

    `contents` names what is written ("the page"). Raises UsageError where the file cannot be made.
    """

    def __init__(self, path: Path, contents: str) -> None:
        if path.is_dir():
            raise UsageError(f"{contents} cannot be written to {path}: it is a directory", legal="a file")
        self._path = path = path.resolve()  # through a link, not in its place
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise UsageError(
                f"{contents} cannot be written to {path}: {error.strerror}",
                legal="a file in a directory that can be written to",
                remedy="choose another file, or make room or permission there",
            ) from error

    def write(self, text: str) -> None:
        """Write the text. What is there and no plain file (a device, a pipe) is written to as it is. Raises OSError."""
        data = text.encode("utf-8", "backslashreplace")
        if self._path.exists() and not self._path.is_file():
            self._path.write_bytes(data)
            return
        write_replacing(self._path, data)
