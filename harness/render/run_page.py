"""The page of a run of tests: timeline, failures, and the slowest files and tests."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, escape, one_line
from harness.render.pages import html_page
from harness.render.run_words import (
    REASON_OF_CODE,
    isolation_text,
    list_failures,
    outcome_counts,
    over_budget_lines,
    shown,
    tally,
    words,
)
from harness.runner.events import RunFinished
from harness.runner.records.run_record import FileSpan, RunRecord, TestSpan, read_run_record
from harness.runner.records.stats import RunState
from harness.runner.records.timeline import Row, rows_of
from harness.runner.test_outcomes import TestCounts
from harness.runner.units import file_of

MAX_FAILURES = 200
NUM_SLOWEST = 10
LEAST_WIDTH = 0.15
"""Percent of the timeline's width that a bar has at least; a passed one that another would hide is left out."""
LEAST_OF_FILE = 1.5
"""Percent of the timeline's width from which the tests of a file are drawn."""
NO_OUTCOME = "no outcome"
TONES = {
    "bad": ("failed", "leaning", "error", "collect_error", "pytest_error", "usage_error"),
    "lost": ("collect_timeout", "timed_out", "crashed", "exited_early", "unkillable", "supervisor_lost", "unfinished"),
    "stopped": ("interrupted", "not_run", "unstarted", NO_OUTCOME),
    "quiet": ("flaky", "skipped", "xfailed", "no_tests"),
    "good": ("passed", "xpassed"),
}
"""Outcomes of each colour."""
TONE_OF = {outcome: tone for tone, outcomes in TONES.items() for outcome in outcomes}
LEGEND = {"good": "passed", "bad": "failed", "lost": "hung or crashed", "quiet": "skipped or no tests"}
LEGEND["stopped"] = "stopped"
_TURNS = re.compile("[\u2028-\u202e\u2066-\u2069]")


def run_page_text(record_file: Path, state: RunState, finished: RunFinished | None) -> str:
    """Return the page of a run; reads the outputs of its failed files. Raises OSError for an unreadable record."""
    record = read_run_record(record_file, *([finished] if finished else []))
    failures = list_failures(state, finished)
    texts = [_TURNS.sub(lambda match: escape(match.group()), shown(each.text).rstrip("\n")) for each in failures]
    numbers = {file_of(each.name.partition("::")[0]): number for number, each in reversed([*enumerate(failures)])}
    spans = [span for span in record.files.values() if span.start_s is not None]
    tests = [test for span in spans for test in span.tests]
    bound = f"{record.bounding_unit} sets the bound: split this file to make the run shorter"
    over = over_budget_lines((each.path, each.need, each.gpu_memory) for each in record.files.values())
    notes = [
        *([bound] if record.bounding_unit else []),
        *(f"not used: {each}" for each in record.left_out),
        *record.notes,
        *map(isolation_text, record.isolation),
        *(f"{each.gpu_id} in quarantine after {each.path}: {each.reason}" for each in record.lost_gpus),
        *(f"more GPU memory than its budget: {line}" for line in over),
    ]
    return html_page(
        "run.html",
        styles=("report.css", "run.css"),
        filters={
            "tone": lambda word: TONE_OF.get(word.replace(" ", "_"), "bad"),
            "seconds": seconds_text,
            "words": words,
        },
        record=record,
        verdict=verdict_text(record.exit_code),
        sign=_sign(record.exit_code),
        units=f"{count(len(record.files), 'unit')}: {outcome_counts(state.outcomes) or 'none'}",
        tests=tally(TestCounts(dict(state.tests))),
        notes=notes,
        timeline=_timeline(record, spans, numbers),
        failures=list(zip(failures, texts, strict=True))[:MAX_FAILURES],
        num_failures=len(failures),
        slowest=[("file", _slowest([(s.path, s) for s in spans])), ("test", _slowest([(t.nodeid, t) for t in tests]))],
    )


def verdict_text(code: int | None) -> str:
    """The exit code in words."""
    if code is None:
        return "The run has no end"
    known = {ExitCode.OK: "all tests passed", ExitCode.TESTS_FAILED: "tests failed", **REASON_OF_CODE}
    why = known.get(code, f"exit code {code}")
    return f"{why[:1].upper()}{why[1:]}"


def seconds_text(seconds: float) -> str:
    """A duration for people: 0.012 s, 3.4 s, 5 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return f"{seconds:.3f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _sign(code: int | None) -> tuple[str, str]:
    if code == ExitCode.OK:
        return "equal", "✓"
    return ("diverged", "✗") if code in (ExitCode.TESTS_FAILED, ExitCode.INTERNAL_ERROR) else ("incomplete", "!")


def _word(span: Any) -> str:
    return span.outcome.value if span.outcome else NO_OUTCOME


# ---- timeline: a row for each GPU and CPU slot; all places are percent of its width


def _timeline(record: RunRecord, spans: list[FileSpan], numbers: dict[str, int]) -> dict[str, Any]:
    first_s = record.first_start_s
    whole_s = max(record.makespan_s, record.lower_bound_s, 0.001)
    tones = {TONE_OF[_word(each)] for span in spans for each in (span, *span.tests)}
    rows = rows_of(record)
    return {
        "rows": [_row(row, first_s, whole_s, record, numbers) for row in rows],
        "ticks": [(f"{25 * each}%", seconds_text(whole_s * each / 4)) for each in range(4)],
        "bound": f"{100 * record.lower_bound_s / whole_s:.2f}%" if record.lower_bound_s else "",
        "legend": [(tone, meaning) for tone, meaning in LEGEND.items() if tone in tones],
        "has_quarantine": any(row.lost_s is not None for row in rows),
    }


def _row(row: Row, first_s: float, whole_s: float, record: RunRecord, numbers: dict[str, int]) -> dict[str, Any]:
    bars = []
    for span, place in _bars(row.files, first_s, whole_s):
        width_s = span.end_s - (span.start_s or 0.0)
        is_wide = 100 * width_s / whole_s >= LEAST_OF_FILE
        tests = _bars(span.tests, span.start_s or 0.0, width_s or 1.0) if is_wide else ()
        name = one_line(span.path).rpartition("/")[2]
        own = {"label": name, "failure": numbers.get(file_of(span.path)), "title": _title(span.path, span, first_s)}
        bars.append({**place, **own, "tests": [{**p, "title": _title(t.nodeid, t, first_s)} for t, p in tests]})
    return {
        "name": one_line(row.name, 40),
        "title": one_line(row.title),
        "idle": f"{1 - min(1.0, row.busy_s / (record.makespan_s or 1.0)):.0%}",
        "lost": "" if row.lost_s is None else f"{100 * (row.lost_s - first_s) / whole_s:.2f}%",
        "bars": bars,
    }


def _bars(spans: Iterable[Any], first_s: float, whole_s: float) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the spans that can be seen, each with its place and its tone."""
    filled = -1.0
    for span in spans:
        left, right = (100 * ((each or 0.0) - first_s) / whole_s for each in (span.start_s, span.end_s))
        tone = TONE_OF[_word(span)]
        if tone != "good" or right > filled:
            filled = max(right, left + LEAST_WIDTH)
            yield span, {"x": f"{left:.2f}%", "width": f"{filled - left:.2f}%", "tone": tone}


def _title(name: str, span: FileSpan | TestSpan, first_s: float) -> str:
    start_s = span.start_s or 0.0
    times = f"{seconds_text(span.end_s - start_s)} from {seconds_text(start_s - first_s)}"
    return f"{one_line(name)}: {words(_word(span))}, {times}"


# ---- lists


def _slowest(spans: list[tuple[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return (name, duration, share of all, outcome) of the longest."""
    total_s = sum(span.duration_s or 0.0 for _, span in spans) or 1.0
    longest = sorted(((span.duration_s or 0.0, name, span) for name, span in spans), key=lambda each: -each[0])
    return [(one_line(n), seconds_text(s), f"{s / total_s:.0%}", _word(x)) for s, n, x in longest[:NUM_SLOWEST]]
