"""How a recording begins: the directory of its trace, run.json in it, and the program's environment.

| variable | in a recorded program |
|---|---|
| `RLHARNESS_TRACE` | path of run.json |
| `PYTHONPATH` | the directory that starts a recording, then what it was |
| `RLHARNESS_ATTEMPT` | the run's unique marker under a supervisor, by which its processes can be found |
| those of the level | see `harness/bits/levels.py` |
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.bits.errors import HarnessError
from harness.bits.files import write_replacing
from harness.bits.redaction import redact_text
from harness.lab.experiments.out_directory import OutDirectory
from harness.process.child_env import ATTEMPT_MARKER
from harness.process.scratch import remove_tree
from harness.recording.entry_call import CALL, REJECTION
from harness.recording.run_spec import PROCESSES, RUN, RUN_VARIABLE, RunSpec, boot_directory


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recording that can begin."""

    out: OutDirectory
    env: Mapping[str, str]
    """The program's whole environment."""

    @property
    def directory(self) -> Path:
        """Of the trace; absolute."""
        return self.out.path


def prepare(run_spec: RunSpec, directory: Path, environ: Mapping[str, str], marker: str = "") -> Prepared:
    """Make the directory of a trace and write run.json into it; `marker` is that of an attempt, where there is one.

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
        raise HarnessError(
            f"{error.filename or path} cannot be written: {error.strerror}",
            legal="a directory with room that this user can write to",
            remedy="make room there, or choose another one with --out",
        ) from None
    python_path = [str(boot_directory()), *filter(None, [environ.get("PYTHONPATH", "")])]
    env = {**environ, **launched.level_env, **({ATTEMPT_MARKER: marker} if marker else {})}
    return Prepared(out, {**env, RUN_VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(python_path)})


def notes_on(environ: Mapping[str, str]) -> list[str]:
    """Return notes on variables of an environment that make a recording incomplete."""
    if address := environ.get("RAY_ADDRESS"):
        return [f"RAY_ADDRESS={redact_text(address)}: actors of a cluster that runs already are not recorded"]
    return []


def abandon(prepared: Prepared) -> None:
    """Take back what `prepare` has made, and what a process that did not begin has reported.

    What an entry has written itself stays, and so does a directory that was there before.
    """
    for name in (RUN, CALL, REJECTION):
        (prepared.directory / name).unlink(missing_ok=True)
    remove_tree(str(prepared.directory / PROCESSES))
    prepared.out.remove_if_empty()
