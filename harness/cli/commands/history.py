"""`rlharness history` from arguments to exit code."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import one_line
from harness.process.invocation import Invocation
from harness.process.user_cache import cache_path
from harness.render.console import say, show
from harness.render.history import history_json, history_lines, trends_text
from harness.runner.config import load_config_for
from harness.runner.records.history import History
from harness.runner.records.trends import Trend, select_trends, similar_names


def show_history(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness history`; raises UsageError for a name that is not known."""
    name = arguments["name"]
    named = [] if name is None else [invocation.cwd / name.partition("::")[0]]
    config = load_config_for(named, invocation.cwd)
    root = config.path.parent if config.path else invocation.cwd
    file = cache_path(invocation.environ, "history", root, ".sqlite")
    with History.of_root(root, invocation.environ, is_run=False) as history:
        known, notes = history.trends(), history.notes
    if config.history_free:
        notes = (*notes, f"{config.path} sets history-free, so runs record nothing")
    found = _by_duration(known) if name is None else _named(known, name, invocation.cwd, root)
    if arguments["json"]:
        show(json.dumps(history_json(found, exit_code=ExitCode.OK, file=str(file), notes=notes)))
        return ExitCode.OK
    for note in notes:
        say(note)
    if not found:
        show(f"No run of the suite in {one_line(str(root), 4096)} is recorded. rlharness run records runs in {file}")
        return ExitCode.OK
    show("\n".join(history_lines(found, arguments["limit"])))
    if name is None:
        num_files = sum(not each.is_test for each in known)
        say(f"{trends_text(num_files, len(known) - num_files)} known; rlharness history FILE lists the tests of a file")
    return ExitCode.OK


def _by_duration(known: list[Trend]) -> list[Trend]:
    """The files, longest median first."""
    return sorted((each for each in known if not each.is_test), key=lambda each: -(each.median_s or 0.0))


def _named(known: list[Trend], typed: str, cwd: Path, root: Path) -> list[Trend]:
    """The trends of what was typed, a path from the working directory or from the root of the suite."""
    path, colons, test = typed.partition("::")
    from_root = os.path.relpath(cwd / path, root)
    names = [os.path.normpath(path) + colons + test, from_root + colons + test]
    found = select_trends(known, names)
    if not found:
        similar = similar_names(known, names[-1])
        examples = f", such as {', '.join(map(one_line, similar))}" if similar else ""
        is_empty = f"no run of the suite in {one_line(str(root), 4096)} is recorded"
        raise UsageError(
            f"no recorded run has {one_line(typed)}" if known else is_empty,
            legal=f"a test, file or directory that has run{examples}",
            remedy="rlharness history lists the known files" if known else "run the suite with rlharness run",
        )
    return found
