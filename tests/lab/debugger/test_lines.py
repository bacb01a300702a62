"""Where commands come from."""

import asyncio
import os
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.lab.reproduce.debugger.lines import PipedLines, PlainLines, open_lines


def test_lines_of_a_text_are_shown_as_they_are_read() -> None:
    shown: list[str] = []

    async def read() -> list[str | None]:
        lines = PlainLines("next\n\nback", shown.append)
        return [await lines.next("> ") for _ in range(4)]

    assert asyncio.run(read()) == ["next", "", "back", None]
    assert shown == ["> next", "> ", "> back"]


def test_lines_of_a_pipe_come_one_by_one_and_what_is_cut_is_a_line_too() -> None:
    shown: list[str] = []
    reading, writing = os.pipe()

    async def read() -> list[str | None]:
        lines = PipedLines(reading, shown.append)
        os.write(writing, b"ne")
        first = asyncio.create_task(lines.next("> "))
        await asyncio.sleep(0)
        os.write(writing, "xt\nshow ä\nqu".encode())
        found = [await first, await lines.next("> ")]
        os.close(writing)
        return [*found, await lines.next("> "), await lines.next("> ")]

    assert asyncio.run(read()) == ["next", "show ä", "qu", None]
    os.close(reading)
    assert shown == ["> next", "> show ä", "> qu"]


def test_a_file_of_commands_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--commands"):
        open_lines(tmp_path / "none", tmp_path / "history", set, print)
