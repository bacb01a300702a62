"""The failed files of a run as HTML: reasons, failed tests, output and stacks, as much as a page holds."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from harness.bits.errors import ReportError
from harness.bits.files import open_regular
from harness.bits.text import count, one_line
from harness.bits.text import escape as escape_character
from harness.process.program_output import OutputFilter, show_file
from harness.render.outcomes import facts, label
from harness.render.run_page.markup import Markup, element
from harness.render.run_page.timeline_data import tone_of
from harness.runner.records.run_comparison import FAILING
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestReport, read_report
from harness.runner.units import UnitResult

MAX_BYTES = 1_200_000
"""Bytes of all texts together, as HTML."""
MAX_TEST_BYTES = 12_000
MAX_OUTPUT_BYTES = 40_000
MAX_TESTS = 40
"""Failed tests of one file whose text is shown."""
MAX_FILES = 200
NUM_OPEN = 3
_TURNS = re.compile("[\u2028-\u202e\u2066-\u2069]")


class Budget:
    """The bytes that are left for texts."""

    def __init__(self, num_bytes: int = MAX_BYTES) -> None:
        self.num_left = num_bytes

    def cut(self, text: str, limit: int) -> str:
        """`text`, its middle left out where it is longer than `limit` or than the bytes that are left."""
        limit = min(limit, self.num_left)
        text = _without_middle(text, limit)  # at least a byte a character
        if (size := _size(text)) > limit:
            text = _without_middle(text, int(len(text) * limit / size))
        self.num_left = max(0, self.num_left - _size(text))
        return text


def failures_of(state: RunState) -> list[UnitResult]:
    """The failed files of a run, by path; the position of each is the number of its section."""
    return [each for each in sorted(state.results.values(), key=lambda r: r.unit.path) if each.is_failure]


def failure_sections(results: Sequence[UnitResult], state: RunState) -> list[Markup]:
    """A section for each failed file."""
    budget = Budget()
    sections = [_section(number, each, state, budget) for number, each in enumerate(results[:MAX_FILES])]
    if (num_more := len(results) - MAX_FILES) > 0:
        more = f"{count(num_more, 'more failed file')}: the list of outcomes names them."
        sections.append(element("p", more, class_="about"))
    return sections


def _section(number: int, result: UnitResult, state: RunState, budget: Budget) -> Markup:
    path = one_line(result.unit.path)
    said = ", ".join(facts(result, state)) or one_line(result.reason, 200)
    parts: list[Markup] = []
    if result.reason:
        parts.append(element("p", one_line(result.reason, 1000), class_="reason"))
    if budget.num_left <= 0:
        parts.append(element("p", "Its output is not shown: the page is full.", class_="about"))
    elif result.directory:
        directory = Path(result.directory)
        parts += _tests(_report(directory), budget)
        parts += _text("Stacks of its processes at termination", _contents(directory / "stacks.txt"), budget)
        parts += _text("Output", _contents(directory / "output.log"), budget)
    elif result.unit.collect_error:
        parts += _text("Error of collection", _filtered(result.unit.collect_error), budget, is_open=True)
    if result.directory:
        parts.append(element("p", "kept in ", element("code", one_line(result.directory, 4096)), class_="about"))
    tone = tone_of(result.outcome.value)
    summary = element(
        "summary",
        element("span", label(result.outcome), class_=f"outcome {tone}"),
        " ",
        element("b", path, class_="name"),
        element("small", said),
    )
    return element("details", summary, parts, class_="failure", id=f"failure-{number}", open=number < NUM_OPEN)


def _without_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out here ...]\n{text[len(text) - half :]}"


def _report(directory: Path) -> TestReport:
    try:
        return read_report(directory / "report.jsonl")
    except (OSError, ReportError):
        return TestReport()


def _tests(report: TestReport, budget: Budget) -> list[Markup]:
    """The failed tests of a file, and what could not be collected."""
    failed = [(nodeid, report.outcome_of(nodeid)) for nodeid in report.all_ids()]
    failed = [(nodeid, outcome) for nodeid, outcome in failed if outcome in FAILING]
    parts: list[Markup] = []
    for nodeid, text in report.collect_errors:
        parts += _text(f"Error of collection in {one_line(nodeid)}", _filtered(text), budget, is_open=True)
    for at, (nodeid, outcome) in enumerate(failed[:MAX_TESTS]):
        end = report.ends.get(nodeid)
        chip = element("span", outcome.value, class_=f"outcome {tone_of(outcome.value)}")
        name = element("code", one_line(nodeid))
        why = element("small", one_line(end.reason, 500)) if end and end.reason else None
        if end and end.text:
            text = element(
                "pre", budget.cut(_filtered(_without_middle(end.text, 4 * MAX_TEST_BYTES)), MAX_TEST_BYTES), tabindex=0
            )
            parts.append(element("details", element("summary", chip, " ", name, why), text, class_="test", open=not at))
        else:
            parts.append(element("p", chip, " ", name, why, class_="test"))
    if (num_more := len(failed) - MAX_TESTS) > 0:
        parts.append(element("p", f"{count(num_more, 'more failed test')} in this file.", class_="about"))
    return parts


def _text(title: str, text: str, budget: Budget, *, is_open: bool = False) -> list[Markup]:
    if not text.strip():
        return []
    shown = budget.cut(text.rstrip("\n"), MAX_OUTPUT_BYTES)
    return [element("details", element("summary", title), element("pre", shown, tabindex=0), open=is_open)]


def _contents(path: Path) -> str:
    """The first and the last part of a file; the reason where it cannot be read, and nothing where there is none."""
    pieces: list[str] = []
    try:
        with open_regular(path) as file:
            show_file(file, str(path), pieces.append, colour=False, cap_bytes=2 * MAX_OUTPUT_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as error:  # the tests may have put anything in its place
        return f"({one_line(str(path), 4096)} is not shown: {error.strerror})"
    return _visible("".join(pieces))


def _filtered(text: str) -> str:
    """The beginning and the end of a text, harmless to a terminal, and thereby to a page."""
    text = _without_middle(text, 4 * MAX_OUTPUT_BYTES)
    output = OutputFilter(colour=False)
    return _visible(output.feed(text.encode("utf-8", "backslashreplace")) + output.finish())


def _visible(text: str) -> str:
    """`text` with the characters that turn it around as Python escapes."""
    return _TURNS.sub(lambda match: escape_character(match.group()), text)


def _size(text: str) -> int:
    return len(escape(text, quote=False).encode("utf-8", "backslashreplace"))
