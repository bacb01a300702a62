"""What a word of a command line names on disk: the directory of a recorded run, a bundle, or neither."""

import os
import shlex
import zipfile
from enum import Enum
from pathlib import Path

from harness.bits.errors import UsageError
from harness.lab.experiments.bundle import ENDING
from harness.lab.experiments.recorded_run import is_recorded_run
from harness.lab.experiments.scenario import all_scenarios
from harness.lab.experiments.scenario_names import ENDINGS
from harness.recording.entry_call import CALL
from harness.recording.run_spec import TRAIN
from harness.trace.layout import MANIFEST, log_name
from harness.trace.reader import read_trace

LEGAL = "the directory of a recorded run, or a bundle"


class RecordedKind(Enum):
    """Something recorded that can be run again."""

    RUN = "the directory of a recorded run"
    BUNDLE = "a bundle"


def recorded_kind(cwd: Path, name: str) -> RecordedKind:
    """Return what a word names, by what is there; a file that is no scenario counts as a bundle.

    Raises UsageError, which says what is there instead, for neither.
    """
    path = cwd / name
    if is_recorded_run(path):
        return RecordedKind.RUN
    if path.is_file() and not name.endswith(ENDINGS):
        return RecordedKind.BUNDLE
    if path.is_dir() or name.endswith("/"):
        raise no_run_in(path, name)
    is_scenario = path.is_file() or name in {each.name for each in all_scenarios(cwd)}
    raise UsageError(
        f"{name} is a scenario, not a recorded run" if is_scenario else f"there is no run or bundle {name}",
        legal=LEGAL,
        remedy=f"rlharness replay {shlex.quote(name)} runs a scenario"
        if is_scenario
        else "check how it is spelled; rlharness train SCENARIO --out RUN records a run",
    )


def find_recorded(cwd: Path, name: str) -> RecordedKind | None:
    """Return what a word names where a scenario is meant; None for a scenario, and for what is not there.

    Raises UsageError for a directory that holds no recorded run.
    """
    path = cwd / name
    if name in {each.name for each in all_scenarios(cwd)}:
        return None
    if is_recorded_run(path):
        return RecordedKind.RUN
    if path.is_dir() or name.endswith("/"):
        raise no_run_in(path, name)
    is_bundle = path.is_file() and (path.suffix == ENDING or zipfile.is_zipfile(path))
    return RecordedKind.BUNDLE if is_bundle else None


def no_run_in(directory: Path, name: str) -> UsageError:
    """Return the error for a directory, called so, that holds no recorded run: it says what it holds instead."""
    what, remedy = _content(directory, name)
    return UsageError(what, legal=LEGAL, remedy=remedy)


def _content(directory: Path, name: str) -> tuple[str, str]:
    """(what a directory is that holds no recorded run, what to type instead)."""
    if not directory.is_dir():
        return f"there is no directory {name}", "rlharness scenarios shows what can be named"
    if any((directory / file).exists() for file in (MANIFEST, log_name(0))):
        manifest = read_trace(directory).manifest
        if manifest is not None and manifest.argv[: len(TRAIN)] == TRAIN:
            return f"{name} is a recorded run without its {CALL}", "record it again: rlharness train SCENARIO --out RUN"
        return f"{name} is a trace without the command that it is of", "record it again: rlharness trace -- COMMAND"
    if runs := sorted(each.parent.name for each in directory.glob(f"run-*/{MANIFEST}")):
        return f"{name} holds several runs", f"name one of them: rlharness reproduce {os.path.join(name, runs[0])}"
    return f"the directory {name} holds no recorded run", "rlharness train SCENARIO --out RUN records one"
