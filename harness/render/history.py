"""Trends of files and tests as text and JSON."""

from collections.abc import Sequence
from typing import Any

from harness.bits.text import one_line
from harness.render.run_words import gb_text
from harness.render.serialise import attributes
from harness.runner.records.history import PastResult, Trend

VERSION = 1
MAX_LISTED = 50
OTHER = "o"
MEANINGS = {
    ".": ("passed", ("passed",)),
    "F": ("failed", ("failed", "collect_error", "pytest_error", "usage_error")),
    "f": ("flaky", ("flaky",)),
    "L": ("leaning", ("leaning",)),
    "E": ("error", ("error",)),
    "s": ("skipped", ("skipped",)),
    "x": ("xfailed", ("xfailed",)),
    "X": ("xpassed", ("xpassed",)),
    "T": ("timed out", ("timed_out", "collect_timeout")),
    "C": ("hung or crashed", ("crashed", "exited_early", "unkillable", "supervisor_lost", "unfinished")),
    "-": ("no tests", ("no_tests",)),
    OTHER: ("other", ()),
}
"""Letters, pytest's where it has one: what each means, and its outcomes."""
LETTERS = {outcome: letter for letter, (_, outcomes) in MEANINGS.items() for outcome in outcomes}
HEADS = ("outcomes", "runs", "median", "range", "spread")


def history_lines(trends: Sequence[Trend]) -> list[str]:
    """A table of at most MAX_LISTED trends with the letters that it uses; the results of a single trend one by one."""
    shown = list(trends)[:MAX_LISTED]
    rows = [HEADS, *(_cells(each) for each in shown)]
    if any(each.peak_bytes is not None for each in shown):
        memory = ["GPU memory", *(gb_text(each.peak_bytes) for each in shown)]
        rows = [(*row, cell) for row, cell in zip(rows, memory, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = ["file or test", *(one_line(each.name) for each in shown)]
    cells = [(row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])) for row in rows]
    lines = ["  ".join((*row, name)) for row, name in zip(cells, names, strict=True)]
    if (num_more := len(trends) - len(shown)) > 0:
        lines.append(f"and {num_more:,} more: --json has all")
    used = dict.fromkeys(letter for each in shown for letter in _letters(each))
    lines.append("")
    lines.append("outcomes, oldest first: " + ", ".join(f"{letter} {MEANINGS[letter][0]}" for letter in used))
    if len(trends) == 1:
        lines += ["", *(_result_line(each) for each in trends[0].results)]
    return lines


def history_json(trends: Sequence[Trend], *, exit_code: int, file: str, notes: Sequence[str]) -> dict[str, Any]:
    """All trends as plain values."""
    head = {"version": VERSION, "exit_code": exit_code, "file": file, "notes": list(notes)}
    found = []
    for trend in trends:
        low_s, high_s = (end(trend.durations_s, default=None) for end in (min, max))
        own = {"min_s": low_s, "max_s": high_s, "peak_gpu_bytes": trend.peak_bytes}
        found.append({**attributes(trend, "name", "median_s", "spread", "results"), **own})
    return {**head, "trends": found}


def _cells(trend: Trend) -> tuple[str, ...]:
    durations_s = trend.durations_s
    if trend.median_s is None:
        return (_letters(trend), f"{len(trend.results)}", "none", "", "")
    spread = "" if trend.spread is None or len(durations_s) < 2 else f"{trend.spread:.0%}"
    low, high = _seconds(min(durations_s)), _seconds(max(durations_s))
    return (_letters(trend), f"{len(trend.results)}", f"{_seconds(trend.median_s)} s", f"{low}-{high} s", spread)


def _letters(trend: Trend) -> str:
    return "".join(LETTERS.get(each.outcome, OTHER) for each in trend.results)


def _result_line(result: PastResult) -> str:
    outcome = result.outcome.replace("_", " ")
    memory = "" if result.peak_bytes is None else f"  {gb_text(result.peak_bytes)}"
    return f"{one_line(result.run_id):<24}  {outcome:<16}  {_seconds(result.duration_s):>9} s{memory}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:,.1f}"
