"""`.rlharness`: the directories that commands make in it, and the removal of old ones. Nothing else writes there.

A checkout, an archive or a test can put anything into it, and a person may have moved it by a link. So no link is
followed there, no directory of another user is used, and only a directory that has a name of our form and holds our
mark is ever removed. Directories that versions before the mark have made stay.
"""

import os
import re
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from harness.bits.errors import HarnessError, UsageError
from harness.process.scratch import remove_tree

HOME = ".rlharness"
RUNS = "runs"
MARK = ".made-by-rlharness"
"""Name of a file in every directory that rlharness makes; a directory without it is not its own."""
NUM_KEPT = 20
RESULT = {RUNS: "units"}
"""An entry that every directory with results has. Others are counted apart: each mistyped path makes one."""
_MARK_TEXT = f"rlharness removes this directory once {NUM_KEPT} newer ones exist; without this file it stays.\n"
_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def new_run_id(date: datetime) -> str:
    """An id of its own for each run; ids sort by date, to the second."""
    return f"{date:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def make_run_directory(root: Path, run_id: str) -> Path:
    """Make the directory of a new run below `root`; its path.

    `latest` becomes a link to it, older runs beyond the last twenty are removed. Raises HarnessError where nothing can
    be written there.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        return make_kept_directory(root, RUNS, run_id)
    except OSError as error:
        raise HarnessError(
            f"cannot create a run directory in {root / HOME / RUNS}: {error.strerror}",
            legal="a writable directory for results and outputs",
            remedy="make it writable, or name another directory with --results-dir or results-dir in the configuration",
        ) from error


def make_kept_directory(root: Path, kind: str, own_id: str, *, alternative: str = "") -> Path:
    """Make `.rlharness/KIND/OWN_ID` below `root`; its path. Of a kind the last NUM_KEPT are kept.

    Raises UsageError where `.rlharness` or `KIND` is a link or belongs to another user, with `alternative` before the
    other remedy, and OSError where nothing can be made.
    """
    home, of_kind = root / HOME, root / HOME / kind
    with _opened(home, None, alternative) as home_fd, _opened(of_kind, home_fd, alternative) as kind_fd:
        os.mkdir(own_id, 0o700, dir_fd=kind_fd)  # a checkout may have brought `.rlharness` with another mode
        own_uid = os.lstat(own_id, dir_fd=kind_fd).st_uid  # this user's, as the file system has it: some map users
        for path, fd in ((home, home_fd), (of_kind, kind_fd)):
            if (uid := os.fstat(fd).st_uid) != own_uid:
                os.rmdir(own_id, dir_fd=kind_fd)
                move = shlex.join(["mv", str(path), f"{path}.old"])
                raise _refused(f"{path} belongs to user {uid}", f"{alternative}move it away: {move}")
        try:
            _write(f"{own_id}/{MARK}", _MARK_TEXT, kind_fd)
        except OSError:  # a directory without it would stay for good
            os.rmdir(own_id, dir_fd=kind_fd)
            raise
        with suppress(FileExistsError):  # a link that leads nowhere, too
            _write(".gitignore", "*\n", home_fd)
        if kind == RUNS:
            _point_latest(kind_fd, own_id)
        for name in _too_old(kind_fd, own_id, RESULT.get(kind, "")):
            remove_tree(name, dir_fd=kind_fd)  # one that cannot go now is tried again by the next command
    return of_kind / own_id


@contextmanager
def _opened(path: Path, parent_fd: int | None, alternative: str) -> Iterator[int]:
    """A directory, made for this user alone where it is missing; `parent_fd` is the one that holds it, where open."""
    name = path if parent_fd is None else path.name
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    if stat.S_ISLNK(os.lstat(name, dir_fd=parent_fd).st_mode):
        remove = shlex.join(["rm", str(path)])
        raise _refused(f"{path} is a link", f"{alternative}remove the link, and nothing else: {remove}")
    fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _refused(what: str, remedy: str) -> UsageError:
    return UsageError(
        f"{what}, and rlharness removes old results from there",
        legal="a directory that this user owns and that is not a link; rlharness creates a missing one",
        remedy=remedy,
    )


def _write(name: str, text: str, dir_fd: int) -> None:
    """Write a file that is not there yet; FileExistsError where anything is."""
    fd = os.open(name, _NEW_FILE, 0o644, dir_fd=dir_fd)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:  # no half of it stays, which the next command would take for the whole
        os.unlink(name, dir_fd=dir_fd)
        raise


def _too_old(kind_fd: int, own_id: str, result: str) -> list[str]:
    """The names of directories of ours beyond the last NUM_KEPT of those with a result, and of those without."""
    ours = [name for name in sorted(os.listdir(kind_fd)) if _is_ours(name, kind_fd)]
    fruitful = [name for name in ours if name == own_id or not result or _mode(f"{name}/{result}", kind_fd)]
    fruitless = [name for name in ours if name not in fruitful]
    return fruitful[:-NUM_KEPT] + fruitless[:-NUM_KEPT]


def _is_ours(name: str, kind_fd: int) -> bool:
    return (
        _ID.fullmatch(name) is not None
        and stat.S_ISDIR(_mode(name, kind_fd))
        and stat.S_ISREG(_mode(f"{name}/{MARK}", kind_fd))
    )


def _mode(name: str, dir_fd: int) -> int:
    """Type and permissions of an entry, links not followed; 0 where there is none."""
    try:
        return os.lstat(name, dir_fd=dir_fd).st_mode
    except OSError:
        return 0


def _point_latest(runs_fd: int, run_id: str) -> None:
    fresh = f".latest-{run_id}"
    os.symlink(run_id, fresh, dir_fd=runs_fd)
    try:
        os.replace(fresh, "latest", src_dir_fd=runs_fd, dst_dir_fd=runs_fd)
    except OSError:
        os.unlink(fresh, dir_fd=runs_fd)
        raise
