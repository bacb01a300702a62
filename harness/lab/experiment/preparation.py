"""How a run begins: its directory, its standard input, run.json and the program's environment.

| variable | in a recorded program |
|---|---|
| `RLHARNESS_TRACE` | path of run.json |
| `PYTHONPATH` | the directory that starts a recording, then what it was |
| `RLHARNESS_ATTEMPT` | the run's unique marker under a supervisor, by which its processes can be found |
| those of the level | see `harness/bits/levels.py` |
"""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.bits.errors import HarnessError, UsageError
from harness.bits.files import write_replacing
from harness.bits.redaction import redact_text
from harness.bits.text import path_text
from harness.process.child_env import ATTEMPT_MARKER
from harness.process.run_directory import HOME, make_kept_directory
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RUN, RUN_VARIABLE, RunSpec, boot_directory


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
            has_run = any(next(path.glob(pattern), None) for pattern in (RUN, f"*/{RUN}"))
            recorded = f"what was recorded there: rm -r {shlex.quote(path_text(path))}"
            remedy = f"choose another one with --out, or delete {recorded if has_run else 'what is there'}"
            raise UsageError(f"{path_text(path)} is not empty", remedy=remedy)
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
    what = f"nothing can be written to {path_text(directory)}: {error.strerror}"
    return UsageError(what, remedy="choose another one with --out")


def prepare(
    run_spec: RunSpec, directory: Path, environ: Mapping[str, str], marker: str = ""
) -> tuple[OutDirectory, dict[str, str]]:
    """Make the directory of a trace and write run.json into it; return the program's whole environment beside it.

    `marker` is that of an attempt, where there is one.

    UsageError where the directory holds anything, cannot be made, or the level excludes what the user has set;
    nothing is changed then.
    """
    directory = directory.absolute()
    launched = run_spec.launched(directory, environ)
    path = directory / RUN
    out = OutDirectory.take(directory)
    try:
        write_replacing(path, launched.to_text())
        if run_spec.call is not None:
            run_spec.call.write(directory)
    except OSError as error:
        with suppress(OSError):
            out.give_back()  # nothing has run: the next command may take it
        what = f"{error.filename or path} cannot be written: {error.strerror}"
        raise HarnessError(what, remedy="make room there, or choose another one with --out") from None
    python_path = [str(boot_directory()), *filter(None, [environ.get("PYTHONPATH", "")])]
    env = {**environ, **launched.level_env, **({ATTEMPT_MARKER: marker} if marker else {})}
    return out, {**env, RUN_VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(python_path)}


def notes_on(environ: Mapping[str, str]) -> list[str]:
    """Return notes on variables of an environment that make a recording incomplete."""
    if address := environ.get("RAY_ADDRESS"):
        return [f"RAY_ADDRESS={redact_text(address)}: actors of a cluster that runs already are not recorded"]
    return []
