"""Open and read files that others have written: regular files alone, no larger and no deeper than they may be.

A name may lead to a FIFO, which blocks its reader, to a device without an end, or to terabytes; JSON may be nested
until the interpreter has no stack left. Every file that rlcore reads is opened here; links are followed, as caches of
checkpoints are made of them.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 1 << 28
"""So much of a file is read as a whole, at most: 256 MiB. Tensors are mapped, and have no such limit."""
MAX_DEPTH = 100
"""Lists and objects within each other, at most."""


def check_regular(path: Path) -> None:
    """Check that a path leads to a regular file, for libraries that open it by its name. OSError for another."""
    _check(os.stat(path), path)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting for another process. OSError for anything else."""
    check_regular(path)  # looked at first, since opening a device may do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(file.fileno()), path)  # looked at again, since the name may have moved
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a whole regular file. OSError as `open_regular`, and for one of more than `max_bytes`."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size_bytes:,} bytes, more than {max_bytes:,}", os.fspath(path))
        return file.read(size_bytes)


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


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a device, a FIFO or a socket"
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
