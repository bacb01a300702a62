"""Where commands come from: a person at a terminal, a pipe, or a file.

At a terminal lines are edited, remembered and completed; elsewhere they are plain, and shown as they are read, so that
what is printed can be read alone.
"""

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from harness.bits.errors import UsageError
from harness.bits.text import path_text


class Lines(Protocol):
    """Gives one line after another."""

    async def next(self, prompt: str) -> str | None:
        """The next line; None where there is none any more. KeyboardInterrupt where a person has pressed Ctrl-C."""


class PlainLines:
    """Lines of a text, shown with the prompt before them."""

    def __init__(self, text: str, show: Callable[[str], None]) -> None:
        self._lines = deque(text.splitlines())
        self._show = show

    async def next(self, prompt: str) -> str | None:
        """The next line of the text."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        self._show(f"{prompt}{line}")
        return line


class PipedLines:
    """Lines that come out of a pipe, each as soon as it is there."""

    def __init__(self, fd: int, show: Callable[[str], None]) -> None:
        self._fd = fd
        self._show = show
        self._heard = b""
        self._has_ended = False

    async def next(self, prompt: str) -> str | None:
        """The next line of the pipe."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._heard and not self._has_ended:
            news = asyncio.Event()
            loop.add_reader(self._fd, news.set)
            try:
                await news.wait()
            finally:
                loop.remove_reader(self._fd)
            piece = os.read(self._fd, 1 << 16)
            self._heard += piece
            self._has_ended = not piece
        if not self._heard:
            return None
        line, _, self._heard = self._heard.partition(b"\n")
        text = line.decode("utf-8", "replace")
        self._show(f"{prompt}{text}")
        return text


class EditedLines:
    """Lines that a person types, with a history in a file where one is given, and with words to complete."""

    def __init__(self, history: Path | None, words: Callable[[], Iterable[str]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import DynamicCompleter, WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        kept: FileHistory | InMemoryHistory = InMemoryHistory()
        with suppress(OSError):  # a directory that cannot be written to is no reason to remember nothing
            if history is not None:
                history.touch(mode=0o600)
                kept = FileHistory(str(history))
        completer = DynamicCompleter(lambda: WordCompleter(sorted(words()), WORD=True))
        # Menus are redrawn with every key, which a slow line feels: completions are listed when Tab asks for them.
        self._session: PromptSession[str] = PromptSession(
            history=kept,
            completer=completer,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
        )

    async def next(self, prompt: str) -> str | None:
        """What is typed next; Ctrl-D is the end."""
        try:
            return await self._session.prompt_async(prompt, handle_sigint=False)
        except EOFError:
            return None


def open_lines(
    commands: Path | None, history: Path | None, words: Callable[[], Iterable[str]], show: Callable[[str], None]
) -> Lines:
    """A file of commands if there is one, else standard input, be it a terminal or not; UsageError for no such file."""
    if commands is not None:
        try:
            return PlainLines(commands.read_text("utf-8"), show)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(
                f"--commands {path_text(commands)}: {why}",
                legal="a text file, a command a line",
                remedy="omit --commands to type them, or to read them from a pipe",
            ) from None
    if sys.stdin.isatty() and sys.stdout.isatty():
        return EditedLines(history, words)
    fd = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(fd).st_mode):  # of which no loop says when it can be read: always
        return PlainLines(sys.stdin.read(), show)
    return PipedLines(fd, show)
