"""The user's cache directory: state of rlharness that no repository can bring along.

A checkout, an archive or a test can put any file into `.rlharness`; what a command trusts is therefore kept here.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from harness.bits.errors import UsageError


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory for rlharness below `$XDG_CACHE_HOME` or `~/.cache`, made with mode 0700 where missing.

    A relative `$XDG_CACHE_HOME` is ignored, as its specification says. A directory that this user's group can write,
    which a umask of 002 leaves, is set to 0700. Raises UsageError for one that is a link, belongs to another user or
    can be written by everybody, and where none can be made.
    """
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    return _private(given if given.is_absolute() else home / ".cache", "rlharness")


def cache_path(environ: Mapping[str, str], kind: str, root: Path, suffix: str = "") -> Path:
    """Return where the cache keeps its file of one kind for the directory `root`, which may not be there yet.

    It is named by a digest of the real path of `root`, in the directory KIND of `user_cache`, and errors are as there.
    """
    digest = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
    return _private(user_cache(environ), kind) / f"{digest}{suffix}"


def _private(parent: Path, name: str) -> Path:
    directory = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from None
    if stat.S_ISLNK(found.st_mode):
        raise _unusable(directory, "it is a link")
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(directory, "it is not a directory")
    if found.st_uid != os.geteuid():
        raise _unusable(directory, f"user {found.st_uid} owns it, and rlharness runs as user {os.geteuid()}")
    if found.st_mode & stat.S_IWOTH:
        raise _unusable(directory, f"every user can write to it (mode {stat.S_IMODE(found.st_mode):04o})")
    if found.st_mode & stat.S_IWGRP:
        directory.chmod(0o700)
    return directory


def _unusable(directory: Path, why: str) -> UsageError:
    return UsageError(
        f"the cache directory {directory} cannot be used: {why}",
        legal="a directory that this user owns and no other user can write to",
        remedy="set XDG_CACHE_HOME to a directory of your own, or chmod 700 it",
    )
