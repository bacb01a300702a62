"""Small pieces of wording that every reporter shares, and what makes foreign text safe to print.

Paths, node ids and reasons come from other people's suites: they may hold control characters that move a cursor,
line breaks, text that runs from right to left, or bytes that are no text at all.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from harness.runner.stats import RunState
from harness.runner.units import Outcome, TestCounts, TestOutcome, UnitResult

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {
    TestOutcome.PASSED: "passed",
    TestOutcome.FAILED: "failed",
    TestOutcome.ERROR: "in error",
    TestOutcome.SKIPPED: "skipped",
    TestOutcome.XFAILED: "xfailed",
    TestOutcome.XPASSED: "xpassed",
    TestOutcome.UNFINISHED: "unfinished",
    TestOutcome.UNSTARTED: "not started",
}


def escape(character: str) -> str:
    """A character as its Python escape: \\x1b, \\u202e."""
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line of at most `limit` characters, with nothing in it that a terminal would obey."""
    joined = " ".join(text.split())
    shown = joined if len(joined) <= limit else joined[: limit - 3] + "..."
    return _UNSAFE.sub(lambda match: escape(match.group()), shown)


def path_text(path: Path) -> str:
    """A path as a person would type it here: without `..`, and relative where it lies below the working directory."""
    plain = Path(os.path.realpath(path)) if ".." in path.parts else path
    here = Path.cwd()
    return str(plain.relative_to(here) if plain.is_relative_to(here) else plain)


def put(stream: TextIO, text: str) -> None:
    """Write `text`, with what the stream's encoding has no bytes for as escapes.

    Raises OSError or ValueError where the stream is gone.
    """
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def count(number: int, noun: str, plural: str = "") -> str:
    """1 unit, 2 units, 1,200 units."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def label(outcome: Outcome) -> str:
    """The outcome in words, in capitals where somebody should look: "passed", "FAILED", "TIMED OUT"."""
    words = outcome.value.replace("_", " ")
    return words if outcome in (Outcome.PASSED, Outcome.NO_TESTS) else words.upper()


def tally(tests: TestCounts) -> str:
    """14 passed, 2 skipped: in the order of TestOutcome, worst not first; "no tests" for none."""
    parts = [f"{tests[outcome]:,} {_SHORT[outcome]}" for outcome in TestOutcome if tests[outcome]]
    return ", ".join(parts) or "no tests"


def facts(result: UnitResult, state: RunState) -> list[str]:
    """How long a unit ran, where, and what became of its tests; nothing of one that was never started."""
    if not result.directory:
        return []
    return [f"{result.duration_s:.1f} s", cards(result.gpu_ids, state), tally(result.tests)]


def cards(gpu_ids: Iterable[str], state: RunState) -> str:
    """The cards of a lease by their positions among the run's: "gpu 0", "gpus 0-3,6"; "cpu" for none."""
    names = card_names(state.gpus)
    shown = [names.get(gpu_id, gpu_id) for gpu_id in gpu_ids]
    if not shown:
        return "cpu"
    return f"gpu{'' if len(shown) == 1 else 's'} {ranges(shown)}"


def card_names(gpus: Iterable[str]) -> dict[str, str]:
    """The index of each card by its id, from the lines of RunStarted ("0 NVIDIA H200 143 GB GPU-...")."""
    words = [line.split() for line in gpus]
    return {line[-1]: line[0] for line in words if line}


def ranges(names: Iterable[str]) -> str:
    """0,1,2,3,6 as "0-3,6"; names that are no numbers stay as they are."""
    names = list(names)
    numbers = sorted(int(name) for name in names if name.isdecimal())
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join([*spans, *(name for name in names if not name.isdecimal())])
