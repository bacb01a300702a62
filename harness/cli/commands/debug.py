"""`rlharness replay RUN --step K --interactive` from arguments to exit code.

plan ─▶ session: a line ─▶ command ─▶ answer, until there is none any more ─▶ every process is ended

Ctrl-C stops what goes on at the next value that is recorded; twice it leaves. The end of the lines leaves, too.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import UsageError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.core.text import count, path_text
from harness.core.user_cache import cache_path
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.recorded_run import is_recorded_run
from harness.lab.experiments.session import open_session
from harness.lab.experiments.supervised_runs import Place
from harness.lab.replay.plan import REPLAYS
from harness.lab.reproduce.debugger.answers import Answer, Told
from harness.lab.reproduce.debugger.console import Console, Inside
from harness.lab.reproduce.debugger.lines import Lines, open_lines
from harness.lab.reproduce.debugger.words import COMMANDS, parse_line
from harness.lab.reproduce.plan import check_machine, free_overrides, named_run, refuse_options
from harness.process.run_directory import new_run_id
from harness.render.console import say, show
from harness.render.interactive import answer_json, answer_text, prompt_text
from harness.render.run_lines import SilentRuns
from harness.trace.chain import PHASES

HISTORY = "interactive-history"
WITHOUT_MEANING = ("op", "break_on", "until", "bundle", "reference_checkpoint", "timeout")
"""Options of replay that a prompt has no use for."""


def run_interactive(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out an interactive replay; HarnessError for what the user can mend."""
    run_id = new_run_id(SystemClock().wall())
    inside = make_inside(invocation, arguments, run_id)
    place = Place(check_machine(invocation), invocation.cwd, invocation.environ, run_id)
    colour = wants_colour(arguments["color"], invocation)
    commands = invocation.cwd / arguments["commands"] if arguments["commands"] else None

    def tell(answer: Answer) -> None:
        show(json.dumps(answer_json(answer)) if arguments["json"] else answer_text(answer, colour=colour))

    def echo(line: str) -> None:
        if not arguments["json"]:
            show(line)

    def open_for(console: Console) -> Lines:
        return open_lines(commands, _history(invocation), lambda: _words(console), echo)

    return asyncio.run(_converse(inside, place, tell, open_for))


def make_inside(invocation: Invocation, arguments: Mapping[str, Any], run_id: str) -> Inside:
    """The step that was asked for; UsageError where nobody can stand in it, or an option means nothing there."""
    name, step = arguments["scenario"], arguments["step"]
    if not arguments["interactive"]:
        raise UsageError(
            "--commands without --interactive", legal="--interactive --commands FILE", remedy="add --interactive"
        )
    if name is None or step is None or not is_recorded_run(invocation.cwd / name):
        raise UsageError(
            "--interactive without a recorded run and one of its steps",
            legal="rlharness replay RUN --step K --interactive, RUN the directory of a run of a scenario",
            remedy="rlharness train SCENARIO --out RUN records one",
        )
    if given := [f"--{name.replace('_', '-')}" for name in WITHOUT_MEANING if arguments[name]]:
        raise UsageError(
            f"{', '.join(given)} with --interactive",
            legal="--step, --against, --set of a free section, --commands, --out, --json, --color",
            remedy="leave it out; break stops where something is recorded",
        )
    refuse_options(arguments)
    run = named_run(invocation, arguments, name)
    against = named_run(invocation, arguments, arguments["against"]) if arguments["against"] else None
    for each in (run, *([against] if against else ())):
        if tuple(each.trace.ranks) != (0,):
            raise UsageError(
                f"{path_text(each.directory)} has {count(len(each.trace.ranks), 'rank')}",
                legal="a run of one process",
                remedy="rlharness replay RUN --step K runs a step of several again",
            )
    after = max(run.trace.steps, default=-1) + 1
    if step > after:  # that behind the last one is legal: the run may have ended in it
        raise UsageError(
            f"--step {step}: {path_text(run.directory)} has none",
            legal=f"0 to {after}, the one behind its last included",
            remedy=f"--step {after} stands in the step in which the run has ended",
        )
    overrides = free_overrides(run, arguments)
    out = out_directory(invocation.cwd, arguments["out"], REPLAYS, run_id)
    return Inside(run, step, out, against, overrides=overrides, **({"whose": arguments["against"]} if against else {}))


async def _converse(
    inside: Inside, place: Place, tell: Callable[[Answer], None], open_for: Callable[[Console], Lines]
) -> ExitCode:
    """Answer one line after another."""
    with open_session(place, SilentRuns()) as session:
        console = Console(inside, session, say)
        talk = asyncio.create_task(_talk(console, tell, open_for(console)))

        def on_signal(name: str) -> None:
            if name == "SIGINT" and console.is_going and not console.is_pausing:
                console.pause()
                say("it stops at the next value; once more leaves")
            else:
                say(f"interrupted by {name}")
                talk.cancel()

        session.hear(on_signal)
        try:
            return await talk
        except asyncio.CancelledError:  # by a signal
            return ExitCode.INTERRUPTED
        finally:
            await console.end()
            if not console.has_begun:
                inside.out.give_back()


async def _talk(console: Console, tell: Callable[[Answer], None], lines: Lines) -> ExitCode:
    """One line after another, to the last; a person who presses Ctrl-C twice at the prompt leaves too."""
    tell(await console.begin())
    is_warned = False
    while True:
        try:
            line = await lines.next(prompt_text(console.walk))
        except KeyboardInterrupt:
            if is_warned:
                return ExitCode.INTERRUPTED
            is_warned = True
            say("once more leaves; so does quit")
            continue
        is_warned = False
        if line is None:
            return ExitCode.OK
        try:
            command = parse_line(line)
        except UsageError as error:
            tell(Told(tuple(str(error).splitlines()), is_refused=True))
            continue
        if command is None:
            continue
        if command.name == "quit":
            return ExitCode.OK
        tell(await console.carry_out(command))


def _history(invocation: Invocation) -> Path | None:
    """Where the lines typed in this directory are remembered; None where there is no place for them."""
    try:
        return cache_path(invocation.environ, HISTORY, invocation.cwd)
    except UsageError:
        return None


def _words(console: Console) -> set[str]:
    """What may be completed: commands, phases, and the names of what was recorded."""
    leaves = console.walk.leaves or console.walk.recorded.values()
    return {*COMMANDS, *PHASES, *(leaf.name for leaf in leaves)}
