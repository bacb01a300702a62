"""`rlharness reproduce RUN --step K --interactive` from options to exit code.

plan ─▶ session: a line ─▶ command ─▶ answer, until the lines end ─▶ every process is terminated

Ctrl-C pauses the run at the next recorded value; a second Ctrl-C leaves, as does the end of the input.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.launcher import LaunchContext, open_launcher
from harness.lab.reproduce.debugger.answers import Answer, Message
from harness.lab.reproduce.debugger.console import Console, StepDebugger
from harness.lab.reproduce.debugger.lines import Lines, open_lines
from harness.lab.reproduce.debugger.opening import open_debugger
from harness.lab.reproduce.debugger.words import COMMANDS, parse_line
from harness.lab.reproduce.options import ReproduceOptions
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation, wants_colour
from harness.process.run_directory import new_run_id
from harness.process.user_cache import cache_path
from harness.render.console import say, show
from harness.render.interactive import answer_json, answer_text, prompt_text
from harness.render.run_lines import SilentRuns
from harness.trace.chain import PHASES

HISTORY = "interactive-history"


def run_interactive(invocation: Invocation, options: ReproduceOptions, *, color: str, is_json: bool) -> ExitCode:
    """Carry out a session of the step debugger; raises HarnessError for a user error."""
    run_id = new_run_id(SystemClock().wall())
    inside = open_debugger(invocation, options, run_id)
    place = LaunchContext(invocation.cwd, invocation.environ, run_id)
    colour = wants_colour(color, invocation)
    commands = invocation.cwd / options.commands if options.commands else None

    def show_answer(answer: Answer) -> None:
        show(json.dumps(answer_json(answer)) if is_json else answer_text(answer, colour=colour))

    def echo(line: str) -> None:
        if not is_json:
            show(line)

    def open_for(console: Console) -> Lines:
        return open_lines(commands, _history(invocation), lambda: _words(console), echo)

    return asyncio.run(_converse(inside, place, show_answer, open_for))


async def _converse(
    inside: StepDebugger,
    place: LaunchContext,
    show_answer: Callable[[Answer], None],
    open_for: Callable[[Console], Lines],
) -> ExitCode:
    """Answer the lines of a session, one after another."""
    with open_launcher(place, SilentRuns()) as session:
        console = Console(inside, session, say)
        talk = asyncio.create_task(_talk(console, show_answer, open_for(console)))

        def on_signal(name: str) -> None:
            if name == "SIGINT" and console.is_going and not console.is_pausing:
                console.pause()
                say("pausing at the next recorded value; press Ctrl-C again to leave")
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


async def _talk(console: Console, show_answer: Callable[[Answer], None], lines: Lines) -> ExitCode:
    """Answer lines until the last one, `quit`, or a second Ctrl-C at the prompt."""
    show_answer(await console.begin())
    is_warned = False
    while True:
        try:
            line = await lines.next(prompt_text(console.walk))
        except KeyboardInterrupt:
            if is_warned:
                return ExitCode.INTERRUPTED
            is_warned = True
            say("press Ctrl-C again to leave, or type quit")
            continue
        is_warned = False
        if line is None:
            return ExitCode.OK
        try:
            command = parse_line(line)
        except UsageError as error:
            show_answer(Message(tuple(str(error).splitlines()), is_refused=True))
            continue
        if command is None:
            continue
        if command.name == "quit":
            return ExitCode.OK
        show_answer(await console.carry_out(command))


def _history(invocation: Invocation) -> Path | None:
    """Return the file of the input history of this directory; None if there is no cache directory."""
    try:
        return cache_path(invocation.environ, HISTORY, invocation.cwd)
    except UsageError:
        return None


def _words(console: Console) -> set[str]:
    """Return the words that Tab completes: commands, phases and names of recorded values."""
    recorded_values = console.walk.values or console.walk.recorded.values()
    return {*COMMANDS, *PHASES, *(recorded_value.name for recorded_value in recorded_values)}
