"""Output directory of an experiment: that of --out, or one below `.rlharness`, where the last ones stay."""

import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.bits.errors import UsageError
from harness.bits.text import path_text
from harness.process.run_directory import HOME, make_kept_directory
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RUN


@dataclass(frozen=True, slots=True)
class OutDirectory:
    """A directory in which there was nothing when a command took it."""

    path: Path
    """Absolute."""
    is_new: bool = True
    """Whether the command has made it; else it was there before, and stays."""

    @classmethod
    def take(cls, path: Path) -> Self:
        """Make it, or take an existing one; UsageError if that is not empty or not writable."""
        path = path.absolute()
        try:
            is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            is_empty = next(path.iterdir(), None) is None
        except OSError as error:
            raise _unwritable(path, error) from None
        if not is_empty:
            raise UsageError(
                f"{path_text(path)} is not empty",
                legal="a new or empty directory",
                remedy=f"choose another one with --out, or delete {_what_is_in(path)}",
            )
        return cls(path, is_new)

    def give_back(self) -> None:
        """Leave it as it was found, without anything that the command has put there."""
        for each in self.path.iterdir():
            remove_tree(str(each))
        self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Remove it, where the command has made it and there is nothing in it."""
        if self.is_new:
            with suppress(OSError):  # there is
                self.path.rmdir()


def place_of(cwd: Path, name: str) -> Path:
    """The absolute path of what a person has named in `cwd`, without `..`."""
    path = (cwd / name).absolute()
    return path.resolve() if ".." in path.parts else path


def out_directory(cwd: Path, out: str | None, kind: str, own_id: str) -> OutDirectory:
    """The directory `out`, new or empty; without one `.rlharness/KIND/OWN_ID`. UsageError where it cannot be.

    Of a kind the last ones are kept; ids sort by date.
    """
    if out:
        return OutDirectory.take(place_of(cwd, out))
    root = cwd.absolute()
    try:
        alternative = "name a new directory elsewhere with --out, or "
        return OutDirectory(make_kept_directory(root, kind, own_id, alternative=alternative))
    except OSError as error:
        raise _unwritable(root / HOME / kind, error) from None


def _unwritable(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        f"nothing can be written to {path_text(directory)}: {error.strerror}",
        legal="a new or empty directory that this user can write to",
        remedy="choose another one with --out",
    )


def _what_is_in(directory: Path) -> str:
    """As a remedy says it: recorded runs with the command that removes them, all else without one."""
    has_run = any(next(directory.glob(pattern), None) for pattern in (RUN, f"*/{RUN}"))
    return f"what was recorded there: rm -r {shlex.quote(path_text(directory))}" if has_run else "what is there"
