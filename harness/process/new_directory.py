"""The directory of a new attempt, whatever earlier tests have made under its name.

Names of attempts are no secret: a test can make the directory of the next one, or a FIFO or a link of that name. The
next file has its outcome all the same.
"""

import os
import secrets
import stat
from pathlib import Path

from harness.bits.files import kind_of


def make_new_directory(path: Path, *, mode: int = 0o777) -> list[str]:
    """Make a directory, and those that lead to it; return a note on each entry that was renamed for it.

    Whatever has its name gets another one, and so does a file or a link that has the name of its parent. Nothing is
    removed, and no link is followed there. Raises OSError where nothing can be made.
    """
    notes = _put_aside(path.parent, keeps_directory=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes += _put_aside(path, keeps_directory=False)
    path.mkdir(mode)
    return notes


def _put_aside(path: Path, *, keeps_directory: bool) -> list[str]:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return []
    if keeps_directory and stat.S_ISDIR(mode):
        return []
    aside = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    os.rename(path, aside)
    what = kind_of(mode).replace("another file", "a file")
    return [f"{path} was {what} that an earlier test must have made; rlharness renamed it to {aside.name}"]
