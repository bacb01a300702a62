"""`rlharness reproduce`: repeat a recorded run or one of its steps, and compare.

RUN, K ─▶ plan ─▶ K again (with --trace-ops once more, operations recorded) ─▶ is it what it was? ─▶ text or JSON
without --step  ─▶ the whole run again ─▶ is it what it was?
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say, show

if TYPE_CHECKING:
    from harness.lab.reproduce.reproduction import ReproduceOptions


@click.command(
    epilog="RUN is the directory of a recorded run: of a scenario, or of a command, which is typed again after --."
    "\n\nA recording names the code that it uses."
    " rlharness lists every such name that no local scenario declares, and uses it only with --trust."
)
@click.argument("subject", metavar="RUN", type=opt.PATH)
@opt.option("--step K", "Repeat only step K, numbered from 0, from the nearest checkpoint.", opt.INDEX)
@opt.trace_step
@opt.option("--interactive is_interactive", "Open the step debugger at step K.")
@opt.option("--commands FILE", "Read the debugger's commands from FILE.", opt.PATH)
@opt.option("--against OTHER", "With --interactive: compare with the values of another run.", opt.PATH)
@opt.option("--trust is_trusted", "Accept a recording that names code or files which no local scenario declares.")
@opt.many("--set overrides KEY=VALUE", "Override a runtime setting, or supply a secret that was not recorded.")
@opt.experiment("reproductions")
@opt.output
def reproduce(invocation: Invocation, output: opt.Output, /, **given: Any) -> int:
    """Repeat a recorded run or one of its steps, and compare.

    Exits with 0 if every bit is reproduced, 10 if it diverges, 11 if it is not comparable, or 12 if a recording is
    incomplete.
    """
    import asyncio

    from harness.lab.experiment.launcher import LaunchContext, check_program
    from harness.lab.experiment.preparation import out_directory
    from harness.lab.reproduce import reproduction
    from harness.render.replay import step_json, step_text
    from harness.render.run_lines import RunLines

    options, cwd, own_id = reproduction.ReproduceOptions(**given), invocation.cwd, opt.new_id()
    if options.is_interactive:
        return debug(invocation, output, options, own_id)
    run = reproduction.named_run(invocation, options.subject, is_trusted=options.is_trusted)
    step = reproduction.plan_step(run, options.step, options)
    check_program(step.run_spec, cwd, invocation.environ)
    out = out_directory(cwd, options.out, reproduction.REPRODUCTIONS, own_id)
    place = LaunchContext(cwd, invocation.environ, own_id, options.timeout_s)
    found = asyncio.run(reproduction.reproduce(step, out, place, RunLines()))
    return output.show(found, step_text, step_json)


def debug(invocation: Invocation, output: opt.Output, options: "ReproduceOptions", own_id: str) -> ExitCode:
    """Carry out a session of the step debugger.

    Ctrl-C pauses the run at the next recorded value; a second Ctrl-C leaves, as does the end of the input.
    """
    import asyncio

    from harness.lab.experiment.launcher import LaunchContext, check_program, open_launcher
    from harness.lab.reproduce.debugger import Answer, Session, open_lines
    from harness.process.user_cache import cache_path
    from harness.render.run_lines import RunLines

    try:
        history = cache_path(invocation.environ, "interactive-history", invocation.cwd)
    except UsageError:  # there is no cache directory
        history = None
    commands = invocation.cwd / options.commands if options.commands else None
    with open_lines(commands, history, lambda line: None if output.is_json else show(line)) as lines:
        session = Session(invocation, options, own_id, say, colour=output.colour and not output.is_json)
        check_program(session.run.spec_to(0, session.overrides), invocation.cwd, invocation.environ)

        async def next_line(prompt: str, words: Iterable[str]) -> str | None:
            for advice in ("press Ctrl-C again to leave, or type quit", ""):
                try:
                    return await lines(prompt, words)
                except KeyboardInterrupt:
                    if advice:
                        say(advice)
            raise asyncio.CancelledError

        def show_answer(answer: Answer) -> None:
            opt.show_json(answer) if output.is_json else show("\n".join(answer["lines"]))

        async def converse() -> ExitCode:
            with open_launcher(
                LaunchContext(invocation.cwd, invocation.environ, own_id, options.timeout_s),
                RunLines(say=lambda line: None),
            ) as launcher:
                talk = asyncio.create_task(session.converse(launcher, next_line, show_answer))

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
