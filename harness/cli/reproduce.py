"""`rlharness reproduce`: repeat a recorded run or one of its steps, and compare.

RUN, K ─▶ plan ─▶ K again (with --trace-ops once more, operations recorded) ─▶ is it what it was? ─▶ text, JSON, bundle
--against OTHER ─▶ the same step of the other run ─▶ the first operation that differs between the two
without --step  ─▶ the whole run again ─▶ is it what it was? --against OTHER ─▶ all its steps, and the trace in OTHER
BUNDLE ─▶ unpacked: a recorded run of one step ─▶ the same
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say, show

if TYPE_CHECKING:
    from harness.lab.reproduce.reproduction import ReproduceOptions


@click.command(
    epilog="RUN is the directory of a recorded run: of a scenario, or of a command, which is typed again after --."
    " BUNDLE is a file written by --bundle.\n\nA recording names the code that it uses."
    " rlharness lists every such name that no local scenario declares, and uses it only with --trust."
)
@click.argument("subject", metavar="RUN|BUNDLE", type=opt.PATH)
@opt.option(
    "--step K", "Repeat only step K, numbered from 0, starting from the nearest checkpoint before it.", opt.INDEX
)
@opt.trace_step
@opt.option("--interactive is_interactive", "Open the step debugger at step K.")
@opt.option("--commands FILE", "Read the debugger's commands from FILE.", opt.PATH)
@opt.option(
    "--against OTHER",
    "Compare with another run: with --step K with its step K, which is repeated too; without, with its trace.",
    opt.PATH,
)
@opt.option("--bundle FILE", "Export step K, or the step at which the run stopped, to one file.", opt.PATH)
@opt.option("--reference-checkpoint refers_to_checkpoint", "Store only the path of the checkpoint in the bundle.")
@opt.breaks
@opt.option("--trust is_trusted", "Accept a recording that names code or files which no local scenario declares.")
@opt.many("--set overrides KEY=VALUE", "Override a runtime setting, or supply a secret that was not recorded.")
@opt.experiment("reproductions")
@opt.output
def reproduce(invocation: Invocation, output: opt.Output, /, **given: Any) -> int:
    """Repeat a recorded run or one of its steps, and compare.

    Exits with 0 if every bit is reproduced, 10 if it diverges, 11 if it is not comparable, or 12 if a recording is
    incomplete. With --until or --break-on only --break-on divergence compares; any other run that ends in order exits
    with 0.
    """
    import asyncio
    from dataclasses import replace

    from harness.lab.experiments.bundle import bundle_place
    from harness.lab.experiments.launcher import LaunchContext, check_program
    from harness.lab.experiments.preparation import out_directory, place_of
    from harness.lab.experiments.recorded_kind import RecordedKind, recorded_kind
    from harness.lab.experiments.scenario import check_entries
    from harness.lab.experiments.single_run import record_until
    from harness.lab.experiments.single_run import with_bundle as with_bundle_of_stop
    from harness.lab.reproduce import reproduction
    from harness.render.replay import step_json, step_text, stopped_json, stopped_text
    from harness.render.run_lines import RunLines
    from harness.trace.reader import read_trace

    options, cwd = reproduction.ReproduceOptions(**given), invocation.cwd
    kind = recorded_kind(cwd, options.subject)
    reproduction.check_options(options, kind)
    own_id = opt.new_id()
    if options.is_interactive:
        return debug(invocation, output, options, own_id)
    place = LaunchContext(cwd, invocation.environ, own_id, options.timeout_s)
    if kind is RecordedKind.BUNDLE:
        if invocation.trailing:
            raise UsageError(
                "a bundle and a command", legal="a bundle, which holds its run", remedy="omit everything after --"
            )
        check_entries(invocation)
        unread = reproduction.trusted_bundle(invocation, options.subject, is_trusted=options.is_trusted)
        out = out_directory(cwd, options.out, reproduction.REPRODUCTIONS, own_id)
        try:
            run = reproduction.unpacked(unread, out.path / reproduction.UNPACKED)
            step = reproduction.plan_step(run, unread.head.step, options)
        except HarnessError:
            out.give_back()
            raise
        found = asyncio.run(reproduction.reproduce(step, None, out, place, RunLines()))
        found = replace(found, notes=tuple(reproduction.notes_on(run, found.repeated)))
        return output.show(found, step_text, step_json)

    run = reproduction.named_run(invocation, options.subject, is_trusted=options.is_trusted)
    if options.has_condition:
        stop = reproduction.plan_stop(run, invocation, options)
        bundle = bundle_place(cwd, options.bundle) if options.bundle else None
        out = out_directory(cwd, options.out, reproduction.REPRODUCTIONS, own_id)
        stopped = asyncio.run(record_until(stop, out, place, RunLines()))
        stopped = with_bundle_of_stop(stopped, bundle, refers_to_checkpoint=options.refers_to_checkpoint)
        return output.show(stopped, stopped_text, stopped_json)
    if run.call is None and options.bundle:
        raise UsageError(
            "--bundle for the run of a command",
            legal="a run of a scenario, which has checkpoints to begin from",
            remedy="a trace is data: send its directory, and reproduce it there with -- COMMAND",
        )
    step = reproduction.plan_step(run, options.step, options)
    check_program(step.run_spec, cwd, invocation.environ)
    other_trace, other_plan = None, None
    if options.against and options.step is None:
        other_trace = read_trace(place_of(cwd, options.against))
    elif options.against:
        other = reproduction.named_run(invocation, options.against, is_trusted=options.is_trusted, is_other=True)
        other_plan = reproduction.plan_step(other, step.step, options)
    bundle = bundle_place(cwd, options.bundle) if options.bundle else None
    out = out_directory(cwd, options.out, reproduction.REPRODUCTIONS, own_id)
    found = asyncio.run(reproduction.reproduce(step, other_plan, out, place, RunLines()))
    found = replace(found, notes=tuple(f"skipped a damaged checkpoint: {each}" for each in step.passed_over))
    if other_trace is not None and not found.interrupted_by:
        found = replace(found, other_trace=reproduction.check_trace(found.repeated, other_trace))
    if bundle is not None and found.repeated.runs and not found.interrupted_by:
        found = reproduction.with_bundle(found, bundle, refers_to_checkpoint=options.refers_to_checkpoint)
    return output.show(found, step_text, step_json)


def debug(invocation: Invocation, output: opt.Output, options: "ReproduceOptions", own_id: str) -> ExitCode:
    """Carry out a session of the step debugger.

    Ctrl-C pauses the run at the next recorded value; a second Ctrl-C leaves, as does the end of the input.
    """
    import asyncio

    from harness.lab.experiments.launcher import LaunchContext, check_program, open_launcher
    from harness.lab.reproduce.debugger import Answer, Session, open_lines
    from harness.process.user_cache import cache_path
    from harness.render.run_lines import RunLines

    try:
        history = cache_path(invocation.environ, "interactive-history", invocation.cwd)
    except UsageError:  # there is no cache directory
        history = None
    commands = invocation.cwd / options.commands if options.commands else None
    lines = open_lines(commands, history, lambda line: None if output.is_json else show(line))
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
        opt.show_json(answer) if output.is_json else "\n".join(answer["lines"])

    async def converse() -> ExitCode:
        with open_launcher(
            LaunchContext(invocation.cwd, invocation.environ, own_id), RunLines(say=lambda line: None)
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
