"""The page of a run of tests: timeline, failures, and the slowest files and tests."""

import re
from collections.abc import Iterable, Iterator, Sequence
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
from harness.runner.records.stats import RunState, closing_figures
from harness.runner.records.timeline import FileSpan, Row, TestSpan, Timeline
from harness.runner.report_file import TestCounts
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


def run_page_text(timeline: Timeline, state: RunState, finished: RunFinished | None) -> str:
    """Return the page of a run that has started; reads the outputs of its failed files."""
    started, code = state.started, finished.exit_code if finished else None
    assert started is not None
    end = finished or closing_figures(state, t=state.t, exit_code=ExitCode.OK, lower_bound_s=state.lower_bound_s)
    failures = list_failures(state, finished)
    texts = [_TURNS.sub(lambda match: escape(match.group()), shown(each.text).rstrip("\n")) for each in failures]
    numbers = {file_of(each.name.partition("::")[0]): number for number, each in reversed([*enumerate(failures)])}
    spans = list(timeline.files.values())
    tests = [test for span in spans for test in span.tests]
    over = over_budget_lines((each.unit.path, each.unit.need, each.gpu_memory) for each in state.results.values())
    notes = [
        *(f"not used: {each}" for each in started.left_out),
        *started.notes,
        *(
            f"{each.gpu_id} was leased again after {each.t:.1f} s: it was as it was before its quarantine"
            for each in timeline.readmitted
        ),
        *end.notes,
        *(
            f"pytest's session failed after its last test: {each.reason} (see {each.log})"
            for each in end.session_failures
        ),
        *map(isolation_text, end.isolation),
        *(f"{each.gpu_id} in quarantine after {each.path}: {each.reason}" for each in state.quarantined.values()),
        *(f"more GPU memory than its budget: {line}" for line in over),
    ]
    first_s = min((span.start_s for span in spans), default=0.0)
    makespan_s = max((span.end_s for span in spans), default=0.0) - first_s
    return html_page(
        "run.html",
        styles=("report.css", "run.css"),
        filters={
            "tone": lambda word: TONE_OF.get(word.replace(" ", "_"), "bad"),
            "seconds": seconds_text,
            "words": words,
        },
        started=started,
        end=end,
        makespan_s=makespan_s,
        verdict=verdict_text(code),
        sign=_sign(code),
        units=f"{count(len(state.units), 'unit')}: {outcome_counts(state.outcomes) or 'none'}",
        tests=tally(TestCounts(dict(state.tests))),
        notes=notes,
        timeline=_timeline(timeline.rows(state), first_s, makespan_s, end.lower_bound_s, numbers),
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


def _timeline(
    rows: Sequence[Row], first_s: float, makespan_s: float, lower_bound_s: float, numbers: dict[str, int]
) -> dict[str, Any]:
    whole_s = max(makespan_s, lower_bound_s, 0.001)
    tones = {TONE_OF[_word(each)] for row in rows for span in row.files for each in (span, *span.tests)}
    return {
        "rows": [_row(row, first_s, makespan_s, whole_s, numbers) for row in rows],
        "ticks": [(f"{25 * each}%", seconds_text(whole_s * each / 4)) for each in range(4)],
        "bound": f"{100 * lower_bound_s / whole_s:.2f}%" if lower_bound_s else "",
        "legend": [(tone, meaning) for tone, meaning in LEGEND.items() if tone in tones],
        "has_quarantine": any(row.lost_s is not None for row in rows),
    }


def _row(row: Row, first_s: float, makespan_s: float, whole_s: float, numbers: dict[str, int]) -> dict[str, Any]:
    bars = []
    for span, place in _bars(row.files, first_s, whole_s):
        width_s = span.end_s - span.start_s
        is_wide = 100 * width_s / whole_s >= LEAST_OF_FILE
        tests = _bars(span.tests, span.start_s, width_s or 1.0) if is_wide else ()
        name = one_line(span.path).rpartition("/")[2]
        own = {"label": name, "failure": numbers.get(file_of(span.path)), "title": _title(span.path, span, first_s)}
        bars.append({**place, **own, "tests": [{**p, "title": _title(t.nodeid, t, first_s)} for t, p in tests]})
    return {
        "name": one_line(row.name, 40),
        "title": one_line(row.title),
        "idle": f"{1 - min(1.0, row.busy_s / (makespan_s or 1.0)):.0%}",
        "lost": "" if row.lost_s is None else f"{100 * (row.lost_s - first_s) / whole_s:.2f}%",
        "bars": bars,
    }


def _bars(spans: Iterable[Any], first_s: float, whole_s: float) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the spans that can be seen, each with its place and its tone."""
    filled = -1.0
    for span in spans:
        left, right = (100 * (each - first_s) / whole_s for each in (span.start_s, span.end_s))
        tone = TONE_OF[_word(span)]
        if tone != "good" or right > filled:
            filled = max(right, left + LEAST_WIDTH)
            yield span, {"x": f"{left:.2f}%", "width": f"{filled - left:.2f}%", "tone": tone}


def _title(name: str, span: FileSpan | TestSpan, first_s: float) -> str:
    times = f"{seconds_text(span.end_s - span.start_s)} from {seconds_text(span.start_s - first_s)}"
    return f"{one_line(name)}: {words(_word(span))}, {times}"


# ---- lists


def _slowest(spans: list[tuple[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return (name, duration, share of all, outcome) of the longest."""
    total_s = sum(span.duration_s for _, span in spans) or 1.0
    longest = sorted(((span.duration_s, name, span) for name, span in spans), key=lambda each: -each[0])
    return [(one_line(n), seconds_text(s), f"{s / total_s:.0%}", _word(x)) for s, n, x in longest[:NUM_SLOWEST]]
