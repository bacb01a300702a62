"""The step debugger's side of the terminal: `rlharness reproduce RUN --step K --interactive [-- COMMAND]`.

    line ─▶ converse ─orders─▶ the run's own process (recording/stepping), which answers and asks for the next line
                 └─ `back`: another process runs up to where the phase began. `compare`: the other run, tensors kept

Going back is doing it again: fork() would be faster, and torch's threads do not survive it. Each process has a
supervisor, and two pipes with names in a directory of their own. If this process goes away, it reads their end and ends.
"""

import asyncio
import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, path_text
from harness.lab.experiments.entry_call import read_rejection
from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.out_directory import OutDirectory, out_directory
from harness.lab.experiments.recorded_run import RecordedRun
from harness.lab.experiments.run import Run
from harness.lab.reproduce.options import ReproduceOptions
from harness.lab.reproduce.plan import REPRODUCTIONS, free_overrides, named_run
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail

STEPPING = "harness.recording.stepping:Stepping"
ORDERS, ANSWERS = "orders.pipe", "answers.pipe"
NUM_LAST_LINES = 4


@dataclass(frozen=True, slots=True)
class StepDebugger:
    """The step at which the debugger pauses."""

    run: RecordedRun
    step: int
    out: OutDirectory
    """Of everything that is run again."""
    against: RecordedRun | None = None
    """With what values are compared; None: with the recorded run itself."""
    whose: str = "the recorded run"
    """How a person calls that."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the run by dotted key: runtime settings and secrets."""
    has_operations: bool = False
    """Whether the operations of the step are recorded."""


def open_debugger(invocation: Invocation, options: ReproduceOptions, run_id: str) -> StepDebugger:
    """Return the requested step, and make its directory; UsageError if the debugger cannot pause at it."""
    assert options.step is not None
    step, other = options.step, options.against
    run = named_run(invocation, options.subject, is_trusted=options.is_trusted)
    against = named_run(invocation, other, is_trusted=options.is_trusted) if other else None
    after = max(run.trace.steps, default=-1) + 1
    if step > after:  # the one after the last is legal: the run may have ended in it
        raise UsageError(
            f"--step {step}: {path_text(run.directory)} has none",
            legal=f"0 to {after}, the one after its last included",
            remedy=f"--step {after} opens the step in which the run ended",
        )
    overrides = free_overrides(run, options.overrides)
    out = out_directory(invocation.cwd, options.out, REPRODUCTIONS, run_id)
    whose = {"whose": other} if other else {}
    return StepDebugger(run, step, out, against, overrides=overrides, has_operations=options.has_operations, **whose)


class Session:
    """One session of the debugger: its processes, one after the other. `say` reports slow work."""

    def __init__(self, debugger: StepDebugger, launcher: Launcher, say: Callable[[str], None], colour: bool) -> None:
        self._debugger, self._launcher, self._say, self._colour = debugger, launcher, say, colour
        self._num_started = 0
        self._process: _Process | None = None
        self.has_begun = False
        """Whether the debugger has paused at the step."""
        self.is_going = False
        """Whether the program runs, or a command is carried out, at a step that was reached."""

    async def converse(self, next_line: "NextLine", show: Callable[[Mapping[str, Any]], None]) -> ExitCode:
        """Answer lines until they end or one leaves."""
        state: dict[str, Any] = {"step": self._debugger.step}
        process = self._process = self._start(state)
        while True:
            self.is_going = process.has_arrived
            message = await process.message()
            self.is_going = False
            if message is None:
                message = self._how_it_ended(process, state["step"])
            if "left" in message:
                return ExitCode.OK
            if "wanted" in message:
                process.send(str(await self._other(message["wanted"])))
                continue
            if "again" not in message:
                state, self.has_begun = message.get("state", state), True
                if message["answer"].get("lines"):
                    show(message["answer"])
                line = await next_line(message["prompt"], message["words"])
                if line is None or (process.is_over and line.strip() in ("q", "quit")):
                    return ExitCode.OK
                if not process.is_over:
                    process.send(line)
                    continue
                if line.strip() != "back":
                    self._say("the run has ended; back repeats it, quit leaves")
                    continue
                message = {"again": state}
            state = message["again"]
            to = f"its first {count(state['position'], 'value')}" if state.get("position") else "its beginning"
            self._say(f"going back: repeating step {state['step']} up to {to}")
            await process.end()
            process = self._process = self._start(state)

    def pause(self) -> None:
        """Pause the program at its next value."""
        if self._process is not None:
            self._process.send(None)

    async def end(self) -> None:
        """End every process."""
        if self._process is not None:
            await self._process.end()

    def _start(self, state: Mapping[str, Any]) -> "_Process":
        """Start a process that runs up to a position."""
        debugger, step = self._debugger, state["step"]
        self._num_started += 1
        number = self._num_started
        pipes = debugger.out.path / f"pipes-{number}"
        pipes.mkdir()
        start = debugger.run.start_before(step)
        op_step = debugger.step if debugger.has_operations else None
        fields = {
            **state,
            "pipes": str(pipes),
            "directory": str(debugger.out.path / f"run-{number}{'' if op_step is None else '-op'}"),
            "run": str(debugger.run.directory.absolute()),
            "other": str(debugger.against.directory.absolute()) if debugger.against else "",
            "whose": debugger.whose,
            "begun": f"repeated from {'the beginning' if start is None else f'the checkpoint of step {start}'}",
            "has_operations": debugger.has_operations,
            "colour": self._colour,
        }
        run_spec = debugger.run.spec_to(step, debugger.overrides)
        run_spec = replace(run_spec, last_step=None, op_step=op_step, callbacks={STEPPING: fields})
        return _Process(pipes, self._launcher.record(run_spec, debugger.out.path, number))

    async def _other(self, step: int) -> Path:
        """Run the other run again to the end of a step, its tensors kept; the directory of the trace."""
        debugger = self._debugger
        self._say(f"repeating {debugger.whose} up to the end of step {step}")
        overrides = debugger.overrides if debugger.against is None else None
        run_spec = (debugger.against or debugger.run).spec_to(step, overrides)
        self._num_started += 1
        run = await self._launcher.record(replace(run_spec, keep=(step,)), debugger.out.path, self._num_started)
        return run.recording.directory.absolute()

    def _how_it_ended(self, process: "_Process", step: int) -> dict[str, Any]:
        """Answer for a process that has ended; UsageError where its entry has refused to begin."""
        run = process.run
        if refusal := read_rejection(run.recording.directory):
            raise refusal.error()
        where = "within" if process.has_arrived else "before"
        problem = f": {run.recording.problems[0].what}" if run.recording.problems else ""
        notes = [f"the run has ended {where} step {step}{problem}"]
        notes += [f"| {line}" for line in output_tail(run.output)[-NUM_LAST_LINES:]]
        answer = {"answer": "paused", "step": step, "at": "ended", "phase": "", "visits": [], "notes": notes}
        return {"answer": {**answer, "lines": notes}, "prompt": f"(step {step}, ended) ", "words": ("back", "quit")}


class _Process:
    """One process that pauses, and both pipes to it."""

    def __init__(self, pipes: Path, recording: Any) -> None:
        for name in (ORDERS, ANSWERS):
            os.mkfifo(pipes / name, 0o600)
        # The orders' pipe is opened for both directions: to write alone would want a reader, who is not there yet.
        self._orders = os.open(pipes / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(pipes / ANSWERS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._task: asyncio.Task[Run] = asyncio.create_task(recording)
        self._heard = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self.has_arrived = False
        """Whether it has come to the step."""
        self.is_over = False
        """Whether it has ended and everything that it said was heard."""
        asyncio.get_running_loop().add_reader(self._answers, self._on_readable)
        self._task.add_done_callback(lambda task: self._news.set())

    @property
    def run(self) -> Run:
        """The run, once it has ended."""
        return self._task.result()

    def send(self, line: str | None) -> None:
        """Hand over a line; None to pause."""
        os.write(self._orders, json.dumps(line).encode() + b"\n")

    async def message(self) -> dict[str, Any] | None:
        """The next thing that the process says; None once it has ended and said everything."""
        while not self._messages and not self._task.done():
            self._news.clear()
            await self._news.wait()
        if not self._messages:
            self._on_readable()  # what was written before the end
        self.is_over = not self._messages
        self.has_arrived = self.has_arrived or not self.is_over
        return None if self.is_over else self._messages.popleft()

    async def end(self) -> None:
        """End it, with every process that it has started."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        asyncio.get_running_loop().remove_reader(self._answers)
        os.close(self._answers)
        os.close(self._orders)

    def _on_readable(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self._answers, 1 << 16):
                self._heard += piece
            asyncio.get_running_loop().remove_reader(self._answers)  # the other side has closed
        *lines, self._heard = self._heard.split(b"\n")
        self._messages += map(json.loads, lines)
        self._news.set()


# ------------------------------------------------------------------------------------------------------ where lines are

NextLine = Callable[[str, Iterable[str]], Any]
"""(prompt, words to complete) -> awaitable of the next line; None at the end. KeyboardInterrupt for Ctrl-C."""


def open_lines(commands: Path | None, history: Path | None, show: Callable[[str], None]) -> NextLine:
    """Lines of a file of commands, or of standard input; UsageError for no such file.

    At a terminal they are edited, remembered in `history` and completed; elsewhere they are shown as they are read.
    """
    if commands is None and sys.stdin.isatty() and sys.stdout.isatty():
        return _edited_lines(history)
    try:
        fd = sys.stdin.fileno() if commands is None else os.open(commands, os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(0, "it is a directory")
    except OSError as error:
        raise UsageError(
            f"--commands {path_text(commands or Path())}: {error.strerror}",
            legal="a text file, a command a line",
            remedy="omit --commands to type them, or to read them from a pipe",
        ) from None
    heard, has_ended = b"", False

    async def next_line(prompt: str, words: Iterable[str]) -> str | None:
        nonlocal heard, has_ended
        while b"\n" not in heard and not has_ended:
            await _readable(fd)
            piece = os.read(fd, 1 << 16)
            heard, has_ended = heard + piece, not piece
        if not heard:
            return None
        line, _, heard = heard.partition(b"\n")
        text = line.decode("utf-8", "replace")
        show(f"{prompt}{text}")
        return text

    return next_line


async def _readable(fd: int) -> None:
    """Wait until there is something to read."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, news.set)
    except PermissionError:  # a regular file always has
        return
    try:
        await news.wait()
    finally:
        loop.remove_reader(fd)


def _edited_lines(history: Path | None) -> NextLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.shortcuts import CompleteStyle

    kept: FileHistory | InMemoryHistory = InMemoryHistory()
    with suppress(OSError):  # a directory that cannot be written to is no reason to remember nothing
        if history is not None:
            history.touch(mode=0o600)
            kept = FileHistory(str(history))
    # Menus are redrawn with every key, which a slow line feels: completions are listed when Tab asks for them.
    session: PromptSession[str] = PromptSession(
        history=kept, complete_while_typing=False, complete_style=CompleteStyle.READLINE_LIKE
    )

    async def next_line(prompt: str, words: Iterable[str]) -> str | None:
        completer = WordCompleter(sorted(words), WORD=True)
        try:
            return await session.prompt_async(prompt, completer=completer, handle_sigint=False)
        except EOFError:
            return None

    return next_line
