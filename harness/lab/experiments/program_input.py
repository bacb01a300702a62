"""Standard input of a replay, read once so that every run gets all of it.

A terminal is not read: a person would not type the same to two runs. Runs get an empty input then.
"""

import os
import select
from collections.abc import Callable
from pathlib import Path

from harness.bits.errors import HarnessError, UsageError
from harness.bits.files import write_replacing
from harness.bits.text import path_text

INPUT = "stdin"
"""In the directory of a replay, where there was any."""
MAX_BYTES = 64 * 1024 * 1024
PATIENCE_S = 2.0
"""Seconds without input before a note says that rlharness waits for it."""
_CHUNK_BYTES = 1 << 16


def read_input(fd: int, say: Callable[[str], None]) -> bytes:
    """Everything up to the end of a file that is no terminal; nothing of one that is, or that is not open.

    UsageError for more than MAX_BYTES, or where it cannot be read.
    """
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        if os.isatty(fd):
            return b""
        if not select.select([fd], [], [], PATIENCE_S)[0]:
            say("standard input is neither a terminal nor at its end: waiting for the end; < /dev/null gives none")
        while chunk := os.read(fd, _CHUNK_BYTES):
            chunks.append(chunk)
            num_bytes += len(chunk)
            if num_bytes > MAX_BYTES:
                raise UsageError(
                    f"standard input has more than {MAX_BYTES:,} bytes",
                    legal="an input that rlharness can store and give to every run",
                    remedy="name a file in the command, or give none: < /dev/null",
                )
    except OSError as error:
        if not chunks and not _is_open(fd):
            return b""
        raise UsageError(
            f"standard input cannot be read: {error.strerror}",
            legal="an input that rlharness can store and give to every run",
            remedy="give none: < /dev/null",
        ) from None
    return b"".join(chunks)


def keep_input(data: bytes, directory: Path) -> Path:
    """The file that every run reads: in the directory of a replay, or one without content.

    HarnessError where it cannot be written.
    """
    if not data:
        return Path(os.devnull)
    path = directory / INPUT
    try:
        write_replacing(path, data, is_private=True)  # it may hold what a person would not print
    except OSError as error:
        raise HarnessError(
            f"standard input cannot be kept in {path_text(directory)}: {error.strerror}",
            legal="a disk with room for it, since every run reads the same input",
            remedy="name another directory with --out, or give no input: < /dev/null",
        ) from None
    return path


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
