"""`rlharness demo` from arguments to exit code.

write the example project ─▶ rlharness run on its suite ─▶ rlharness replay on its program ─▶ what both found

Both commands run in this process, through the code that a typed command runs through, and print what it would print.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.cli.commands.replay import record_and_compare, replay_options, show_replay
from harness.cli.commands.run import raise_failure, run_with_reports
from harness.cli.commands.run_options import make_options
from harness.lab.demo.findings import (
    DemoResult,
    DivergenceFinding,
    FileFinding,
    divergence_finding,
    file_findings,
)
from harness.lab.demo.project import TRAIN, write_project
from harness.lab.experiments.preparation import place_of
from harness.process.invocation import Invocation, wants_colour
from harness.render.console import say, show
from harness.render.demo import demo_json, demo_text, introduction, replay_heading, run_heading

RUN = ("--gpus", "sim:4")
"""Words after `rlharness run`."""

Parse = Callable[[str, tuple[str, ...]], Mapping[str, Any]]
"""Returns the arguments of a command, given its name and its words."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of `rlharness demo`."""

    out: str
    """Directory of the example project, as it was typed."""
    color: str
    is_json: bool


class _Interrupted(Exception):
    """A signal ended one of the two commands."""


def run_demo(invocation: Invocation, options: DemoOptions, parse: Parse) -> ExitCode:
    """Carry out `rlharness demo`; HarnessError for what the user can mend."""
    directory = place_of(invocation.cwd, options.out)
    write_project(directory)
    python = _python(invocation)
    inside = replace(invocation, cwd=directory, trailing=())
    try:
        _print(options, introduction(directory))
        files = _run(inside, options, parse)
        divergence = _replay(inside, options, parse, python) if find_spec("torch") else None
    except _Interrupted:
        return ExitCode.INTERRUPTED
    result = DemoResult(directory, files, divergence, python)
    colour = wants_colour(options.color, invocation)
    show(json.dumps(demo_json(result)) if options.is_json else demo_text(result, colour=colour))
    return result.exit_code


def _run(inside: Invocation, options: DemoOptions, parse: Parse) -> tuple[FileFinding, ...]:
    """Run the suite in this terminal; with --json its display goes to standard error."""
    _print(options, run_heading(RUN, colour=wants_colour(options.color, inside)))
    words = (*RUN, "--color", options.color, *(("--json",) if options.is_json else ()))
    ended = run_with_reports(make_options(inside, parse("run", words)))
    if isinstance(ended, str):
        say(f"interrupted by {ended} before anything was run")
        raise _Interrupted
    raise_failure(ended)
    if ended.finished.exit_code == ExitCode.INTERRUPTED:
        raise _Interrupted
    return file_findings(ended.state.results)


def _replay(inside: Invocation, options: DemoOptions, parse: Parse, python: str) -> DivergenceFinding:
    """Replay the training program in this terminal; with --json only its progress is shown, on standard error."""
    _print(options, replay_heading(python, colour=wants_colour(options.color, inside)))
    inside = replace(inside, trailing=(python, TRAIN))
    replay = record_and_compare(inside, replay_options(parse("replay", ())))
    if not options.is_json:
        show_replay(replay, inside, color=options.color)
    if replay.interrupted_by:
        raise _Interrupted
    return divergence_finding(replay.comparisons[0].verdict if replay.comparisons else None)


def _print(options: DemoOptions, text: str) -> None:
    """Show text between the results; standard output is JSON alone if that was asked for."""
    if not options.is_json:
        show(text)


def _python(invocation: Invocation) -> str:
    """Return `python` if the shell would start this interpreter by that name, else its path."""
    found = shutil.which("python", path=invocation.environ.get("PATH"))
    own = Path(sys.executable)
    return "python" if found is not None and Path(found).parent.resolve() == own.parent.resolve() else str(own)
