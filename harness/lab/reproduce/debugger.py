"""The step debugger's side of the terminal: `rlharness reproduce RUN --step K --interactive [-- COMMAND]`.

    line ─▶ Session ─orders─▶ the run's own process (recording/stepping), which answers and asks for the next line
                └─ `back`: another process runs up to where the phase began. `compare`: the other run, tensors kept

Going back is doing it again: fork() would be faster, and torch's threads do not survive it. Each process has a
supervisor, and two named pipes in a directory of its own. It ends if this process goes away.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, path_text
from harness.lab.experiment.launcher import Launcher, Run
from harness.lab.experiment.preparation import out_directory
from harness.lab.reproduce.reproduction import REPRODUCTIONS, ReproduceOptions, free_overrides, named_run
from harness.process.daemon_thread import in_daemon_thread
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail
from harness.recording.run_spec import read_rejection

STEPPING = "harness.recording.stepping:Stepping"
ORDERS, ANSWERS = "orders.pipe", "answers.pipe"
MAX_MESSAGE_BYTES = 2**30
NUM_LAST_LINES = 4
NextLine = Callable[[str, Iterable[str]], Awaitable[str | None]]
"""(prompt, words to complete) -> the next line; None at the end."""
Answer = Mapping[str, Any]
"""Its `lines`."""


class Session:
    """One session of the debugger: its processes, one after the other. `say` reports slow work.

    UsageError if the debugger cannot pause at the step; nothing is started before `converse`.
    """

    def __init__(
        self,
        invocation: Invocation,
        options: ReproduceOptions,
        run_id: str,
        say: Callable[[str], None],
        *,
        colour: bool,
    ) -> None:
        step, other = options.step, options.against
        assert step is not None
        self.run = named_run(invocation, options.subject, is_trusted=options.is_trusted)
        against = named_run(invocation, other, is_trusted=options.is_trusted, is_other=True) if other else None
        after = max(self.run.trace.steps, default=-1) + 1
        if step > after:  # the one after the last is legal: the run may have ended in it
            what = f"--step {step}: {path_text(self.run.directory)} has none"
            raise UsageError(what, legal=f"0 to {after}, the one after its last included")
        self.overrides = free_overrides(self.run, options.overrides)
        """Of the run, by dotted key: runtime settings and secrets."""
        self._other, self._whose = against or self.run, other or "the recorded run"
        self._step, self._op_step = step, step if options.has_operations else None
        self._say, self._colour, self._num_started = say, colour, 0
        self._process: _Process | None = None
        self.has_begun = self.is_going = self.is_pausing = False
        """Whether the debugger has paused; the program runs since then; it was asked to pause."""
        self.out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, run_id)

    async def converse(self, launcher: Launcher, next_line: NextLine, show: Callable[[Answer], None]) -> ExitCode:
        """Answer lines until they end or one leaves."""
        state: dict[str, Any] = {"step": self._step}
        process = self._process = self._start(launcher, state)
        while True:
            self.is_going = process.has_arrived
            message = await process.message() or self._how_it_ended(await process.task, process, state)
            self.is_going = self.is_pausing = False
            if "wanted" in message:
                process.send(str(await self._repeat_other(launcher, message["wanted"])))
                continue
            if "prompt" in message:
                self.has_begun, state = True, message["state"]
                if message["answer"]["lines"]:
                    show(message["answer"])
                line = await next_line(message["prompt"], message["words"])
                if line is None or (process.task.done() and line.strip() in ("q", "quit")):
                    return ExitCode.OK
                if not process.task.done():
                    process.send(line)
                    continue
                if line.strip() != "back":
                    self._say("the run has ended; back repeats it, quit leaves")
                    continue
                message = {"again": state}
            if "left" in message:
                return ExitCode.OK
            state = message["again"]
            to = f"its first {count(state['position'], 'value')}" if state.get("position") else "its beginning"
            self._say(f"going back: repeating step {state['step']} up to {to}")
            await process.end()
            process = self._process = self._start(launcher, state)

    def pause(self) -> None:
        """Pause the program at its next value."""
        self.is_pausing = True
        if self._process is not None:
            self._process.send(None)

    async def end(self) -> None:
        """End every process; keep nothing if none has paused."""
        if self._process is not None:
            await self._process.end()
        if not self.has_begun:
            self.out.give_back()

    def _start(self, launcher: Launcher, state: Mapping[str, Any]) -> "_Process":
        """Start a process that runs up to a position."""
        self._num_started += 1
        start, pipes = self.run.start_before(state["step"]), self.out.path / f"pipes-{self._num_started}"
        runs = [self.run] if self._other is self.run else [self.run, self._other]
        fields = {
            **state,
            "pipes": str(pipes),
            "directory": str(self.out.path / f"run-{self._num_started}{'' if self._op_step is None else '-op'}"),
            "runs": [str(each.directory.absolute()) for each in runs],
            "whose": self._whose,
            "begun": f"repeated from {'the beginning' if start is None else f'the checkpoint of step {start}'}",
            "colour": self._colour,
        }
        run_spec = self.run.spec_to(state["step"], self.overrides)
        run_spec = replace(run_spec, last_step=None, op_step=self._op_step, callbacks={STEPPING: fields})
        return _Process(pipes, launcher.record(run_spec, self.out.path, self._num_started))

    async def _repeat_other(self, launcher: Launcher, step: int) -> Path:
        """Run the other run again to the end of a step, its tensors kept; the directory of the trace."""
        self._say(f"repeating {self._whose} up to the end of step {step}")
        self._num_started += 1
        run_spec = self._other.spec_to(step, self.overrides if self._other is self.run else None)
        run = await launcher.record(replace(run_spec, keep=(step,)), self.out.path, self._num_started)
        return run.recording.directory.absolute()

    def _how_it_ended(self, run: Run, process: "_Process", state: Mapping[str, Any]) -> dict[str, Any]:
        """Answer for a process that has ended; UsageError where its entry has refused to begin."""
        if refusal := read_rejection(run.recording.directory):
            raise refusal.error()
        step, problems = state["step"], run.recording.problems
        where = f"the run has ended {'within' if process.has_arrived else 'before'} step {step}"
        notes = [where + (f": {problems[0].what}" if problems else "")]
        notes += [f"| {line}" for line in output_tail(run.output)[-NUM_LAST_LINES:]]
        answer = {"lines": notes}
        return {"answer": answer, "prompt": f"(step {step}, ended) ", "words": ("back", "quit"), "state": state}


class _Process:
    """One process that pauses, and both pipes to it."""

    def __init__(self, pipes: Path, recording: Any) -> None:
        pipes.mkdir()
        for name in (ORDERS, ANSWERS):
            os.mkfifo(pipes / name, 0o600)
        # The orders' pipe is opened for both directions: to write alone would want a reader, who is not there yet.
        self._orders = os.open(pipes / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(pipes / ANSWERS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        writing = os.open(pipes / ANSWERS, os.O_WRONLY | os.O_CLOEXEC)  # so that the end is read once all have ended
        self.task: asyncio.Task[Run] = asyncio.create_task(recording)
        self.task.add_done_callback(lambda task: os.close(writing))
        self._reader: asyncio.StreamReader | None = None
        self.has_arrived = False
        """Whether it has come to the step."""

    def send(self, line: str | None) -> None:
        """Hand over a line; None to pause."""
        os.write(self._orders, json.dumps(line).encode() + b"\n")

    async def message(self) -> dict[str, Any] | None:
        """The next thing that the process says; None once it has ended and said everything."""
        if self._reader is None:
            reader = self._reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
            protocol, pipe = asyncio.StreamReaderProtocol(reader), os.fdopen(self._answers, "rb", 0)
            await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        line = await self._reader.readline()
        self.has_arrived = self.has_arrived or bool(line)
        return json.loads(line) if line else None

    async def end(self) -> None:
        """End it, with every process that it has started."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        os.close(self._orders)


@contextmanager
def open_lines(commands: Path | None, history: Path | None, echo: Callable[[str], None]) -> Iterator[NextLine]:
    """Open the lines of a file of commands, or of standard input; UsageError for no such file.

    At a terminal they are edited, remembered in `history` and completed; elsewhere they are shown as they are read.
    """
    if commands is None and sys.stdin.isatty() and sys.stdout.isatty():
        yield _edited_lines(history)
        return
    try:
        source = open(commands or sys.stdin.fileno(), "rb", buffering=0, closefd=commands is not None)  # noqa: SIM115
    except OSError as error:
        what = f"--commands {path_text(commands or Path())}: {error.strerror}"
        raise UsageError(what, legal="a text file, a command a line") from None

    async def next_line(prompt: str, words: Iterable[str]) -> str | None:
        # Unbuffered: a thread that waits for a line must not hold a lock when the interpreter exits.
        line = (await in_daemon_thread(source.readline, limit_s=inf)).decode("utf-8", "replace")
        if not line:
            return None
        echo(f"{prompt}{line.rstrip()}")
        return line.rstrip()

    with source:
        yield next_line


def _edited_lines(history: Path | None) -> NextLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.shortcuts import CompleteStyle

    kept = None
    with suppress(OSError):  # a directory that cannot be written to is no reason to remember nothing
        if history is not None:
            history.touch(mode=0o600)
            kept = FileHistory(str(history))
    # Menus are redrawn with every key, which a slow line feels: completions are listed when Tab asks for them.
    style = CompleteStyle.READLINE_LIKE
    session: PromptSession[str] = PromptSession(history=kept, complete_while_typing=False, complete_style=style)

    async def next_line(prompt: str, words: Iterable[str]) -> str | None:
        completer = WordCompleter(sorted(words), WORD=True)
        with suppress(EOFError):
            return await session.prompt_async(prompt, completer=completer, handle_sigint=False)
        return None

    return next_line
