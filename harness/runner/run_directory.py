"""`.rlharness` in the suite's root: the history, and a directory per run, of which the last twenty are kept."""

import os
import secrets
from datetime import datetime
from pathlib import Path

from harness.errors import HarnessError
from harness.machine.scratch import remove_tree

HOME = ".rlharness"
HISTORY = "history.sqlite"
NUM_RUNS_KEPT = 20


def new_run_id(date: datetime) -> str:
    """An id of its own for each run; ids sort by date, to the second."""
    return f"{date:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def make_run_directory(root: Path, run_id: str) -> Path:
    """Make the directory of a new run below `root`; its path.

    `latest` becomes a link to it, older runs beyond the last twenty are removed. Raises HarnessError where nothing can
    be written there.
    """
    home = root / HOME
    runs = home / "runs"
    directory = runs / run_id
    try:
        directory.mkdir(parents=True)
        ignore = home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        _point_latest(runs, run_id)
        so_far = sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink())
        fruitful = [path for path in so_far if path == directory or (path / "units").is_dir()]
        fruitless = [path for path in so_far if path not in fruitful]  # mistyped paths push no results out
        old = fruitful[:-NUM_RUNS_KEPT] + fruitless[:-NUM_RUNS_KEPT]
    except OSError as error:
        raise HarnessError(
            f"no run directory can be made in {runs}: {error.strerror}",
            legal="a directory in which results and outputs can be kept",
            remedy="make it writable, or start from another directory",
        ) from error
    for directory_of_old in old:
        remove_tree(str(directory_of_old))  # one that cannot go now is tried again by the next run
    return directory


def _point_latest(runs: Path, run_id: str) -> None:
    fresh = runs / f".latest-{run_id}"
    fresh.symlink_to(run_id)
    os.replace(fresh, runs / "latest")
