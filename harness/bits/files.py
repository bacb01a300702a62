"""Open, read and replace files that another process may have replaced: every call ends, and none waits for a writer.

A process can replace a file whose name it knows by anything: a FIFO, which blocks its reader; a link to
/dev/zero, which never ends; a directory; a file of terabytes. `open_regular` opens regular files alone, and the readers
here have limits. `replacing` writes a file that takes its name only once it is whole. Standard library only:
supervisors import this.
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

StrPath = str | os.PathLike[str]

CHUNK_BYTES = 1 << 16
POLL_BYTES = 1 << 22
"""So much of a file is read at a time, at most."""
MAX_BYTES = 1 << 28
"""So much of a file is read in all, at most: 256 MiB."""
MAX_DEPTH = 100
"""Lists and objects of `parse_object` within each other, at most."""
MAX_JSON_BYTES = 1 << 25
"""Limit on a document of JSON, whose values may take 25 times as much memory: lists without elements do."""
MAX_SETTINGS_BYTES = 1 << 20
"""Limit on a document of YAML or TOML, whose parsers read a megabyte in some ten seconds at worst."""
UNLIMITED = sys.maxsize

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The errors of data of an unexpected shape, for every reader of files and messages of others.

JSON may be nested too deeply (RecursionError), have numbers that no float holds (ArithmeticError), texts where numbers
belong (ValueError, TypeError, AttributeError), and lack what is looked up (LookupError).
"""

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


def check_regular(path: StrPath) -> None:
    """Check that a path leads to a regular file, for libraries that open it by its name. OSError for another."""
    _check_regular(os.stat(path), path)


def open_for_writing(path: StrPath, *, appends: bool = False) -> BinaryIO:
    """Open a regular file for writing, made where there is none, without waiting for a reader or following a link.

    What it held is gone unless `appends` is set. OSError where it cannot be opened, or is no regular file.
    """
    end = os.O_APPEND if appends else os.O_TRUNC
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | end), "ab" if appends else "wb")


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


@contextmanager
def replacing(path: StrPath, *, is_synced: bool = False, is_private: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` when the block ends; an exception in it leaves `path` as it was.

    `is_synced`: the bytes are on the disk before the name is. `is_private`: no other user can read it. OSError where
    the file cannot be made or renamed.
    """
    beside = os.path.join(os.path.dirname(os.fspath(path)), f".rlharness-{os.urandom(8).hex()}.new")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o600 if is_private else 0o666)
    try:
        with os.fdopen(fd, "w+b") as file:
            yield file
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def write_replacing(path: StrPath, data: bytes | str, *, is_private: bool = False) -> None:
    """Write a whole file, text as UTF-8, as `replacing` does."""
    with replacing(path, is_private=is_private) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; ValueError for anything else, and for one that is nested deeper than MAX_DEPTH."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, not a JSON object")
    # As many brackets as levels: nearly every file is known to be shallow without a look at its values.
    if content.count(b"{") + content.count(b"[") > MAX_DEPTH and _is_deep(found):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return found


def _is_deep(found: dict[str, Any]) -> bool:
    level: list[dict[str, Any] | list[Any]] = [found]
    for _ in range(MAX_DEPTH):
        level = [
            each
            for holder in level
            for each in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(each, dict | list)
        ]
        if not level:
            return False
    return True
