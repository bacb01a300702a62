"""Where a command of this room puts its runs: where it was told, or below `.rlharness`, where the last ones stay."""

from pathlib import Path

from harness.errors import UsageError
from harness.machine.scratch import remove_tree
from harness.reporters.text import path_text
from harness.runner.run_directory import HOME

NUM_KEPT = 20


def place_of(cwd: Path, name: str) -> Path:
    """The absolute path of what a person has named in `cwd`, without `..`."""
    path = (cwd / name).absolute()
    return path.resolve() if ".." in path.parts else path


def out_directory(cwd: Path, out: str | None, kind: str, own_id: str) -> Path:
    """The directory `out`, new or empty; without one `.rlharness/KIND/OWN_ID`. Absolute; UsageError where it cannot be.

    Of a kind the last NUM_KEPT are kept; ids sort by date.
    """
    directory = place_of(cwd, out) if out else cwd.absolute() / HOME / kind / own_id
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(
                f"{path_text(directory)} is not empty",
                legal="a directory that is new or empty",
                remedy="name another one with --out, or leave --out out",
            )
        if not out:
            _tidy(directory)
    except OSError as error:
        raise UsageError(
            f"nothing can be written to {path_text(directory)}: {error.strerror}",
            legal="a directory in which traces can be kept",
            remedy="name one with --out",
        ) from None
    return directory


def _tidy(directory: Path) -> None:
    """Keep git from looking into the directory, and what is old from filling the disk."""
    ignore = directory.parent.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    for old in sorted(path for path in directory.parent.iterdir() if path.is_dir())[:-NUM_KEPT]:
        remove_tree(str(old))  # one that cannot go now is tried again by the next command
