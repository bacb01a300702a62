"""Open and read files that another process may have replaced: every call ends, and none waits for a writer.

A process can replace a file whose name it knows by anything: a FIFO, which blocks its reader; a link to
/dev/zero, which never ends; a directory; a file of terabytes. `open_regular` opens regular files alone, and the readers
here have limits. Standard library only: supervisors import this.
"""

import errno
import os
import stat
import sys
from typing import BinaryIO

from harness.core.replaced_file import replacing

StrPath = str | os.PathLike[str]

CHUNK_BYTES = 1 << 16
POLL_BYTES = 1 << 22
"""So much of a file is read at a time, at most."""
MAX_BYTES = 1 << 28
"""So much of a file is read in all, at most: 256 MiB."""
MAX_JSON_BYTES = 1 << 25
"""Limit on a document of JSON, whose values may take 25 times as much memory: lists without elements do."""
MAX_SETTINGS_BYTES = 1 << 20
"""Limit on a document of YAML or TOML, whose parsers read a megabyte in some ten seconds at worst."""
UNLIMITED = sys.maxsize
MAX_LINE_BYTES = 1 << 26
NOTHING = "nothing"

_KINDS = {
    stat.S_IFREG: "another file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(mode: int) -> str:
    """Name the kind of file that a mode means, with its article; "another file" for a regular one."""
    return _KINDS.get(stat.S_IFMT(mode), "a special file")


def open_regular(path: StrPath, *, follows_links: bool = False) -> BinaryIO:
    """Open a regular file for reading, without waiting for another process.

    OSError where there is none, it cannot be read, or something else has its name: with `follows_links` unset, a
    symbolic link too.
    """
    # Looked at first, since opening a device may do something; looked at again, since the name may have moved.
    _check_regular(os.stat(path, follow_symlinks=follows_links), path)
    no_link = 0 if follows_links else os.O_NOFOLLOW
    return os.fdopen(_opened(path, os.O_RDONLY | no_link), "rb")


def open_for_writing(path: StrPath, *, appends: bool = False) -> BinaryIO:
    """Open a regular file for writing, made where there is none, without waiting for a reader or following a link.

    What it held is gone unless `appends` is set. OSError where it cannot be opened, or is no regular file.
    """
    end = os.O_APPEND if appends else os.O_TRUNC
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | end), "ab" if appends else "wb")


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


def read_regular(path: StrPath, *, max_bytes: int = MAX_BYTES, follows_links: bool = False) -> bytes:
    """Read a whole regular file. OSError as `open_regular`, and for one that holds more than `max_bytes`."""
    with open_regular(path, follows_links=follows_links) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", os.fspath(path))
        return file.read(size_bytes)


def read_text(path: StrPath, *, max_bytes: int = MAX_BYTES, errors: str = "strict", follows_links: bool = False) -> str:
    """Read a whole regular file as UTF-8. OSError as `read_regular`; UnicodeDecodeError, unless `errors` forgives."""
    return read_regular(path, max_bytes=max_bytes, follows_links=follows_links).decode("utf-8", errors)


class GrowingFile:
    """A file that another process appends to, opened once: a later file of the same name is not read.

    `max_bytes` limits what is read of it in all; UNLIMITED is for readers that keep nothing.
    """

    def __init__(self, path: StrPath, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.is_behind = False
        """Whether the last `read` came to its own limit before it came to the end of the file."""
        self._fd = -1
        self._num_read = 0

    def make(self) -> None:
        """Make the file, which must not exist. OSError where that cannot be done."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)

    def read(self) -> bytes:
        """Read what is new, at most POLL_BYTES of it; nothing while there is no file. OSError as `open_regular`."""
        self.is_behind = False
        if self._fd < 0:
            try:
                with open_regular(self.path) as file:
                    self._fd = os.dup(file.fileno())
            except FileNotFoundError:
                return b""
        chunks: list[bytes] = []
        for _ in range(POLL_BYTES // CHUNK_BYTES):
            chunk = os.pread(self._fd, min(CHUNK_BYTES, self.max_bytes - self._num_read), self._num_read)
            if not chunk:
                return b"".join(chunks)
            self._num_read += len(chunk)
            chunks.append(chunk)
        self.is_behind = True
        return b"".join(chunks)

    def rewind(self) -> None:
        """Read it from its beginning again."""
        self._num_read = 0

    @property
    def excess(self) -> str:
        """Note on a file that holds more than is read of it; empty for any other file."""
        size_bytes = os.fstat(self._fd).st_size if self._fd >= 0 else 0
        if size_bytes <= self.max_bytes:
            return ""
        return f"{os.fspath(self.path)} has {size_bytes:,} bytes, of which the first {self.max_bytes:,} were read"

    @property
    def replaced_by(self) -> str:
        """Kind of file that has the name now: "a FIFO", NOTHING; empty if it is still this file, or none was opened."""
        if self._fd < 0:
            return ""
        ours = os.fstat(self._fd)
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return NOTHING
        except OSError as error:
            return f"a name that cannot be looked up ({error.strerror})"
        return "" if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino) else kind_of(found.st_mode)

    def put_back(self) -> None:
        """Put a copy of the file under its name again. OSError if that fails."""
        with replacing(self.path) as file:
            at = 0
            while chunk := os.pread(self._fd, min(POLL_BYTES, self.max_bytes - at), at):
                file.write(chunk)
                at += len(chunk)

    def close(self) -> None:
        """Close the file; nothing is read any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class GrowingLines:
    """The lines of a growing file, each once, when its newline is there.

    A line of more than `max_line_bytes` is left out and counted; no more than that is held of it.
    """

    def __init__(self, file: GrowingFile, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.file = file
        self.num_left_out = 0
        self._max_line_bytes = max_line_bytes
        self._held: list[bytes] = []
        self._num_held_bytes = 0

    def poll(self) -> list[bytes]:
        """Return the new whole lines, without their newlines. OSError as `GrowingFile.read`."""
        data = self.file.read()
        first, *others = data.split(b"\n")
        self._hold(first)
        if not others:
            return []
        *lines, rest = others
        if len(data) > self._max_line_bytes:
            fitting = [line for line in lines if len(line) <= self._max_line_bytes]
            self.num_left_out += len(lines) - len(fitting)
            lines = fitting
        if self._num_held_bytes <= self._max_line_bytes:
            lines.insert(0, b"".join(self._held))
        else:
            self.num_left_out += 1
        self._held, self._num_held_bytes = [], 0
        self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of a line whose newline is not there yet; of a line that is too long, its length alone."""
        self._num_held_bytes += len(piece)
        if self._num_held_bytes <= self._max_line_bytes:
            self._held.append(piece)
        else:
            self._held.clear()


def _opened(path: StrPath, flags: int) -> int:
    """The descriptor of a regular file. OSError for anything else, said as what it is."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link that is not followed; a FIFO without a reader, a socket
            _check_regular(os.lstat(path), path)
        raise
    try:
        _check_regular(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    os.set_blocking(fd, True)  # as a program that inherits it finds its output elsewhere
    return fd


def _check_regular(status: os.stat_result, path: StrPath) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(status.st_mode)}, not a regular file", os.fspath(path))
