"""The formats of GitHub Actions: annotations beside a job's log, and the summary of a job.

Annotations are workflow commands, lines that the runner reads from the output of a step. The summary is Markdown in the
file that GITHUB_STEP_SUMMARY names.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from html import escape
from typing import TextIO

from harness.bits.files import open_for_writing
from harness.bits.text import one_line, put
from harness.render.console import say

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_BYTES = 2**20
"""GitHub refuses the whole summary of a step if it has more."""


def say_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print workflow commands on a stream, by default standard error: standard output may be JSON."""
    stream = stream or sys.stderr
    with suppress(OSError, ValueError):  # it is closed
        for line in lines:
            put(stream, f"{line}\n")
        stream.flush()


def command(kind: str, message: str, **properties: str) -> str:
    """Return a workflow command; line ends and separators are escaped, and GitHub restores them."""
    pairs = ",".join(f"{name}={_escaped(value, ',:')}" for name, value in properties.items())
    return f"::{kind}{' ' if pairs else ''}{pairs}::{_escaped(message)}"


def _escaped(text: str, others: str = "") -> str:
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{others}" else each for each in text)


def fenced(lines: Iterable[str]) -> list[str]:
    """Return lines as a block of code; its fence is longer than any in them."""
    lines = list(lines)
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def plain(text: str) -> str:
    """Return text escaped for Markdown and HTML, on one line."""
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escape(one_line(text), quote=False))


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines as a block of code below a title that opens it."""
    return [f"<details><summary>{escape(title)}</summary>", "", *fenced(lines), "", "</details>", ""]


def append_to_summary(text: str, environ: Mapping[str, str], *, short: str) -> None:
    """Add Markdown to the summary of the job, or `short` if `text` does not fit beside the contents of the file.

    A file that cannot be written is reported and changes no exit code.
    """
    if not (path := environ.get(SUMMARY_VARIABLE)):
        return
    try:
        with open_for_writing(path, appends=True) as file:  # a test may have put a FIFO or a link in its place
            num_left = MAX_BYTES - file.tell()
            datas = (each.encode("utf-8", "backslashreplace") for each in (text, short, ""))
            file.write(next(data for data in datas if len(data) <= max(0, num_left)))
    except OSError as error:
        say(f"the job's summary cannot be written to {path}: {error.strerror}")
