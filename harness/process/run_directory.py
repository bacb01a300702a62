"""`.rlharness`: the directories that commands make in it, and the removal of old ones. Nothing else writes there.

A checkout, an archive or a test can put anything into it, and a person may have moved it by a link. So no link is
followed there, no directory of another user is used, and only a directory that has a name of our form and holds our
mark is ever removed. Directories that versions before the mark have made stay.
"""

import os
import re
import secrets
import shlex
from contextlib import suppress
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
    home, of_kind, own = root / HOME, root / HOME / kind, root / HOME / kind / own_id
    for path in (home, of_kind):
        with suppress(FileExistsError):
            path.mkdir(0o700)  # a checkout may have brought it with another mode
        if path.is_symlink():
            remove = shlex.join(["rm", str(path)])
            raise _refused(f"{path} is a link", f"{alternative}remove the link, and nothing else: {remove}")
    own.mkdir(0o700)
    try:
        for path in (home, of_kind):
            if (uid := path.lstat().st_uid) != own.lstat().st_uid:  # this user's, as the file system has it
                move = shlex.join(["mv", str(path), f"{path}.old"])
                raise _refused(f"{path} belongs to user {uid}", f"{alternative}move it away: {move}")
        _write(own / MARK, _MARK_TEXT)
    except (OSError, UsageError):  # a directory without its mark would stay for good
        own.rmdir()
        raise
    with suppress(FileExistsError):  # a link that leads nowhere, too
        _write(home / ".gitignore", "*\n")
    if kind == RUNS:
        _point_latest(of_kind, own_id)
    for name in _too_old(of_kind, own_id, RESULT.get(kind, "")):
        remove_tree(str(of_kind / name))  # one that cannot go now is tried again by the next command
    return own


def _refused(what: str, remedy: str) -> UsageError:
    return UsageError(
        f"{what}, and rlharness removes old results from there",
        legal="a directory that this user owns and that is not a link; rlharness creates a missing one",
        remedy=remedy,
    )


def _write(path: Path, text: str) -> None:
    """Write a file that is not there yet; FileExistsError where anything is."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise
    except OSError:  # no half of it stays, which the next command would take for the whole
        path.unlink(missing_ok=True)
        raise


def _too_old(of_kind: Path, own_id: str, result: str) -> list[str]:
    """The names of directories of ours beyond the last NUM_KEPT of those with a result, and of those without."""
    ours = [name for name in sorted(os.listdir(of_kind)) if _is_ours(of_kind / name)]
    fruitful = [name for name in ours if name == own_id or not result or os.path.lexists(of_kind / name / result)]
    fruitless = [name for name in ours if name not in fruitful]
    return fruitful[:-NUM_KEPT] + fruitless[:-NUM_KEPT]


def _is_ours(path: Path) -> bool:
    mark = path / MARK
    return bool(_ID.fullmatch(path.name)) and not path.is_symlink() and mark.is_file() and not mark.is_symlink()


def _point_latest(runs: Path, run_id: str) -> None:
    fresh = runs / f".latest-{run_id}"
    fresh.symlink_to(run_id)
    try:
        fresh.replace(runs / "latest")
    except OSError:
        fresh.unlink()
        raise
