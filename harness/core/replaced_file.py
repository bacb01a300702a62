"""Write a file that takes its name only once it is whole.

    replacing(path) ─▶ .rlharness-RANDOM.new beside it ─▶ bytes ─▶ rename to path

A reader sees the earlier file or the new one. The file beside it has a random name, and is made only if no file has
that name: no link is followed there. Standard library only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

StrPath = str | os.PathLike[str]


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
