"""`rlharness reproduce RUN --step K --interactive` from options to exit code.

Ctrl-C pauses the run at the next recorded value; a second Ctrl-C leaves, as does the end of the input.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.launcher import LaunchContext, checked_program, open_launcher
from harness.lab.reproduce.debugger import NextLine, Session, StepDebugger, open_debugger, open_lines
from harness.lab.reproduce.options import ReproduceOptions
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation, wants_colour
from harness.process.run_directory import new_run_id
from harness.process.user_cache import cache_path
from harness.render.console import say, show
from harness.render.run_lines import SilentRuns

HISTORY = "interactive-history"


def run_interactive(invocation: Invocation, options: ReproduceOptions, *, color: str, is_json: bool) -> ExitCode:
    """Carry out a session of the step debugger; raises HarnessError for a user error."""
    run_id = new_run_id(SystemClock().wall())
    debugger = open_debugger(invocation, options, run_id)
    program = checked_program(debugger.run.spec_to(0, debugger.overrides), invocation.cwd, invocation.environ)
    context = LaunchContext(program, invocation.cwd, invocation.environ, run_id)

    def show_answer(answer: Mapping[str, Any]) -> None:
        show(json.dumps(answer) if is_json else "\n".join(answer["lines"]))

    def echo(line: str) -> None:
        if not is_json:
            show(line)

    lines = open_lines(invocation.cwd / options.commands if options.commands else None, _history(invocation), echo)
    colour = wants_colour(color, invocation) and not is_json
    return asyncio.run(_converse(debugger, context, lines, show_answer, colour))


async def _converse(
    debugger: StepDebugger, context: LaunchContext, lines: NextLine, show_answer: Any, colour: bool
) -> ExitCode:
    with open_launcher(context, SilentRuns()) as launcher:
        session = Session(debugger, launcher, say, colour)
        is_warned = False

        async def next_line(prompt: str, words: Iterable[str]) -> str | None:
            """The next line; Ctrl-C at the prompt leaves the second time."""
            nonlocal is_warned
            while True:
                try:
                    line: str | None = await lines(prompt, words)
                    is_warned = False
                    return line
                except KeyboardInterrupt:
                    if is_warned:
                        raise asyncio.CancelledError from None
                    is_warned = True
                    say("press Ctrl-C again to leave, or type quit")

        talk = asyncio.create_task(session.converse(next_line, show_answer))
        is_pausing = False

        def on_signal(name: str) -> None:
            nonlocal is_pausing
            if name == "SIGINT" and session.is_going and not is_pausing:
                is_pausing = True
                session.pause()
                say("pausing at the next recorded value; press Ctrl-C again to leave")
            else:
                say(f"interrupted by {name}")
                talk.cancel()

        launcher.hear(on_signal)
        try:
            return await talk
        except asyncio.CancelledError:
            return ExitCode.INTERRUPTED
        finally:
            await session.end()
            if not session.has_begun:
                debugger.out.give_back()


def _history(invocation: Invocation) -> Path | None:
    """Return the file of the input history of this directory; None if there is no cache directory."""
    try:
        return cache_path(invocation.environ, HISTORY, invocation.cwd)
    except UsageError:
        return None
