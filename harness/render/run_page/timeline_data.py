"""What the script of the page draws and filters, as plain values: outcomes, rows, files and tests.

    outcomes  [word, tone] each                 rows  {name, title, busy, lost, files: numbers of files}
    files     [path, outcome, start, end, seconds, reason, number of its failure or -1, tests, GPU memory in words]
    tests     [name, outcome, start, end, seconds, GPU memory in words if measured]

Times are milliseconds since the run began; the start of a file that never started is -1.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness.bits.text import one_line
from harness.render.gpu_memory import gb_text, memory_text
from harness.runner.records.run_comparison import FAILING
from harness.runner.records.run_record import FileSpan, RunRecord, TestSpan
from harness.runner.records.timeline import Row, rows_of
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, file_of

MAX_TESTS = 10_000
"""Of more tests, those that failed and the longest are shown."""
NO_OUTCOME = "no outcome"
TONES: dict[str, tuple[str, ...]] = {
    "good": ("passed", "xpassed"),
    "bad": ("failed", "leaning", "error", "collect_error", "pytest_error", "usage_error"),
    "lost": (
        *("collect_timeout", "timed_out", "crashed", "exited_early", "unkillable", "supervisor_lost", "unfinished"),
    ),
    "quiet": ("flaky", "skipped", "xfailed", "no_tests"),
    "stopped": ("interrupted", "not_run", "unstarted", NO_OUTCOME),
}
"""Colour of each outcome."""
_TONE_OF = {outcome: tone for tone, outcomes in TONES.items() for outcome in outcomes}
_WORDS = tuple(dict.fromkeys([*(each.value for each in Outcome), *(each.value for each in TestOutcome), NO_OUTCOME]))
_NUMBERS = {word: number for number, word in enumerate(_WORDS)}


def timeline_data(record: RunRecord, failures: Mapping[str, int]) -> dict[str, Any]:
    """The data of a run; `failures` has the number of each failed file on the page, by path."""
    shown = _shown_tests(record)
    spans = list(record.files.values())
    numbers = {id(span): number for number, span in enumerate(spans)}
    started = [span for span in spans if span.start_s is not None]
    first_s = min((span.start_s or 0.0 for span in started), default=0.0)
    last_s = max((span.end_s for span in started), default=0.0)
    rows = rows_of(record)
    return {
        "outcomes": [[word.replace("_", " "), _TONE_OF[word]] for word in _WORDS],
        "rows": [_row(row, numbers, last_s - first_s or 1.0) for row in rows],
        "files": [_file(each, failures, shown) for each in spans],
        "first": _ms(first_s),
        "last": _ms(last_s),
        "bound": _ms(record.first_start_s + record.lower_bound_s) if record.lower_bound_s else None,
        "hidden": 0 if shown is None else record.num_tests - len(shown),
    }


def script_json(data: object) -> str:
    """JSON without a character that ends a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def tone_of(outcome: str) -> str:
    """Colour of an outcome."""
    return _TONE_OF[outcome]


def _row(row: Row, numbers: Mapping[int, int], whole_s: float) -> dict[str, Any]:
    return {
        "name": one_line(row.name, 40),
        "title": one_line(row.title),
        "busy": round(min(1.0, row.busy_s / whole_s), 3),
        "lost": None if row.lost_s is None else _ms(row.lost_s),
        "files": [numbers[id(each)] for each in row.files],
    }


def _file(span: FileSpan, failures: Mapping[str, int], shown: set[int] | None) -> list[Any]:
    return [
        one_line(span.path),
        _NUMBERS[span.outcome.value if span.outcome else NO_OUTCOME],
        -1 if span.start_s is None else _ms(span.start_s),
        _ms(span.end_s),
        round(span.duration_s or span.end_s - (span.start_s or span.end_s), 3),
        one_line(span.reason, 1000),
        failures.get(span.path, -1),
        [_test(each, span) for each in span.tests if shown is None or id(each) in shown],
        memory_text(span.gpu_memory, span.need) if span.gpu_memory else "",
    ]


def _test(test: TestSpan, span: FileSpan) -> list[Any]:
    name = one_line(test.nodeid.removeprefix(f"{file_of(span.path)}::"))
    peak_bytes = span.gpu_memory.tests.get(test.nodeid) if span.gpu_memory else None
    memory = [] if peak_bytes is None else [f"{gb_text(peak_bytes)} of GPU memory at its peak"]
    return [name, _NUMBERS[test.outcome.value], _ms(test.start_s), _ms(test.end_s), round(test.duration_s, 3), *memory]


def _shown_tests(record: RunRecord) -> set[int] | None:
    """Identities of the tests that are shown; None where all are."""
    if record.num_tests <= MAX_TESTS:
        return None
    tests = [test for span in record.files.values() for test in span.tests]
    tests.sort(key=lambda test: (test.outcome not in FAILING, -test.duration_s))
    return {id(test) for test in tests[:MAX_TESTS]}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
