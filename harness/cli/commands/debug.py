"""`rlharness reproduce RUN --step K --interactive` from options to exit code.

Ctrl-C pauses the run at the next recorded value; a second Ctrl-C leaves, as does the end of the input.
"""

import asyncio
import json
from collections.abc import Iterable

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.launcher import LaunchContext, check_program, open_launcher
from harness.lab.reproduce.debugger import Answer, NextLine, Session, open_lines
from harness.lab.reproduce.reproduction import ReproduceOptions
from harness.process.clock import SystemClock
from harness.process.invocation import Invocation, wants_colour
from harness.process.run_directory import new_run_id
from harness.process.user_cache import cache_path
from harness.render.console import say, show
from harness.render.run_lines import RunLines

HISTORY = "interactive-history"


def run_interactive(invocation: Invocation, options: ReproduceOptions, *, color: str, is_json: bool) -> ExitCode:
    """Carry out a session of the step debugger; raises HarnessError for a user error."""
    run_id = new_run_id(SystemClock().wall())
    try:
        history = cache_path(invocation.environ, HISTORY, invocation.cwd)
    except UsageError:  # there is no cache directory
        history = None
    commands = invocation.cwd / options.commands if options.commands else None
    lines = open_lines(commands, history, lambda line: None if is_json else show(line))
    session = Session(invocation, options, run_id, say, colour=wants_colour(color, invocation) and not is_json)
    check_program(session.run.spec_to(0, session.overrides), invocation.cwd, invocation.environ)
    context = LaunchContext(invocation.cwd, invocation.environ, run_id)

    def show_answer(answer: Answer) -> None:
        show(json.dumps(answer) if is_json else "\n".join(answer["lines"]))

    async def converse() -> ExitCode:
        with open_launcher(context, RunLines(say=lambda line: None)) as launcher:
            talk = asyncio.create_task(session.converse(launcher, _leaving(lines), show_answer))

            def on_signal(name: str) -> None:
                if name == "SIGINT" and session.is_going and not session.is_pausing:
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

    return asyncio.run(converse())


def _leaving(lines: NextLine) -> NextLine:
    """The same lines; the second Ctrl-C at one prompt leaves."""

    async def next_line(prompt: str, words: Iterable[str]) -> str | None:
        for advice in ("press Ctrl-C again to leave, or type quit", ""):
            try:
                return await lines(prompt, words)
            except KeyboardInterrupt:
                if advice:
                    say(advice)
        raise asyncio.CancelledError

    return next_line
