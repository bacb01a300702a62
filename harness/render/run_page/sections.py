"""The sections of the page that need no script: verdict, figures, changes since earlier runs, slowest tests."""

from collections.abc import Iterable, Sequence

from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line
from harness.render.gpu_memory import over_budget_lines
from harness.render.isolation import isolation_text
from harness.render.outcomes import tally
from harness.render.run_page.markup import Markup, element
from harness.render.run_page.timeline_data import tone_of
from harness.render.summary import REASON_OF_CODE
from harness.runner.records.run_comparison import Change, Comparison, Flaky, Slower
from harness.runner.records.run_record import RunRecord
from harness.runner.records.stats import RunState
from harness.runner.test_outcomes import TestCounts
from harness.runner.units import Outcome

MAX_LISTED = 100
"""Rows of a table of changes."""
MAX_OPEN = 10
"""Rows of a table of changes that is open at first."""
NUM_SLOWEST = 20


def banner(record: RunRecord, state: RunState) -> Markup:
    """The verdict, and the counts of files and tests."""
    code = record.exit_code
    kind, sign = _kind(code)
    counted = ", ".join(
        f"{state.outcomes[each]:,} {each.value.replace('_', ' ')}" for each in Outcome if state.outcomes[each]
    )
    return element(
        "section",
        element("p", sign, class_="sign", aria_hidden="true"),
        element(
            "div",
            element("p", f"Run {one_line(record.run_id, 80)}", class_="who"),
            element("h1", verdict_text(code)),
            element("p", f"{count(len(record.files), 'unit')}: {counted or 'none'}", class_="facts"),
            element("p", f"Tests: {tally(TestCounts(dict(state.tests)))}", class_="facts"),
            element("p", one_line(record.error, 2000), class_="reason") if record.error else None,
        ),
        class_=f"banner {kind}",
        aria_label="Verdict",
    )


def verdict_text(code: int | None) -> str:
    """The exit code in words."""
    if code is None:
        return "The run has no end"
    if code == ExitCode.OK:
        return "All tests passed"
    if code == ExitCode.TESTS_FAILED:
        return "Tests failed"
    why = next((why for known, why in REASON_OF_CODE.items() if known == code), f"exit code {code}")
    return f"{why[:1].upper()}{why[1:]}"


def figures(record: RunRecord) -> Markup:
    """The closing figures of the run, with its makespan against the lower bound."""
    rows = [
        ("Makespan", seconds_text(record.makespan_s)),
        ("Lower bound", seconds_text(record.lower_bound_s)),
        ("Makespan / bound", f"{record.makespan_s / record.lower_bound_s:.2f}" if record.lower_bound_s else "none"),
        ("Whole run", seconds_text(record.wall_s)),
        ("One after another", seconds_text(record.sequential_s)),
        ("GPUs leased", f"{record.utilisation:.0%}" if record.gpus else "no GPUs"),
        ("CPU slots", f"{record.cpu_units:,}"),
        ("Containment", record.containment or "none"),
    ]
    bound = None
    if record.bounding_unit:
        path = element("code", one_line(record.bounding_unit))
        bound = element("p", path, " sets the bound: split this file to make the run shorter.", class_="about")
    lines = [*(f"not used: {each}" for each in record.left_out), *record.notes]
    lines += map(isolation_text, record.isolation)
    lines += [f"{each.gpu_id} in quarantine after {each.path}: {each.reason}" for each in record.lost_gpus]
    over = over_budget_lines((each.path, each.need, each.gpu_memory) for each in record.files.values())
    lines += [f"more GPU memory than its budget: {each}" for each in over]
    notes = element("ul", [element("li", one_line(each, 1000)) for each in lines], class_="notes") if lines else None
    cells = [element("div", element("dt", name), element("dd", value)) for name, value in rows]
    heading = element("h2", "Figures", id="figures")
    return element("section", heading, element("dl", cells, class_="figures"), bound, notes, aria_labelledby="figures")


def changes(comparison: Comparison | None) -> Markup:
    """What changed since the earlier runs; a sentence where there is none to compare with."""
    heading = element("h2", "Changes since earlier runs", id="changes")
    if comparison is None:
        nothing = element("p", "No earlier run in this directory has a result of these tests.", class_="empty")
        return element("section", heading, nothing, aria_labelledby="changes")
    num = len(comparison.run_ids)
    runs = count(num, "earlier run") + f", the latest is {one_line(comparison.run_ids[0], 80)}"
    about = f"Compared with {runs}. Each test is compared with the latest of them that has a result of it."
    tables = [
        *_table("Newly failing", ("Test", "Before", "Now", "Compared with"), map(_change, comparison.newly_failing)),
        *_table("Fixed", ("Test", "Before", "Now", "Compared with"), map(_change, comparison.fixed)),
        *_table("Slower", ("Test", "Median", "Now", "Ratio", "Runs"), map(_slower, comparison.slower)),
        *_table("Flaky", ("Test", "Passes (✓) and failures (✗), oldest first"), map(_flaky, comparison.flaky)),
    ]
    parts = tables or [element("p", "Nothing changed: same failures, none slower, none flaky.", class_="empty")]
    return element("section", heading, element("p", about, class_="about"), parts, aria_labelledby="changes")


def slowest(record: RunRecord) -> Markup:
    """The longest tests, each with its share of all tests' seconds."""
    heading = element("h2", "Slowest tests", id="slowest")
    tests = [test for span in record.files.values() for test in span.tests]
    total_s = sum(test.duration_s for test in tests)
    longest = sorted(tests, key=lambda test: -test.duration_s)[:NUM_SLOWEST]
    if not longest:
        return element("section", heading, element("p", "No test began.", class_="empty"), aria_labelledby="slowest")
    rows = [
        (
            element("code", one_line(test.nodeid)),
            seconds_text(test.duration_s),
            f"{test.duration_s / total_s:.0%}" if total_s else "none",
            _chip(test.outcome.value),
        )
        for test in longest
    ]
    return element(
        "section",
        heading,
        _rows(("Test", "Duration", "Share of all tests", "Outcome"), rows),
        aria_labelledby="slowest",
    )


def seconds_text(seconds: float) -> str:
    """A duration for people: 0.012 s, 3.4 s, 5 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return f"{seconds:.3f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def _kind(code: int | None) -> tuple[str, str]:
    if code == ExitCode.OK:
        return "equal", "✓"
    return ("diverged", "✗") if code in (ExitCode.TESTS_FAILED, ExitCode.INTERNAL_ERROR) else ("incomplete", "!")


def _change(change: Change) -> Sequence[Markup | str]:
    return element("code", one_line(change.name)), _chip(change.before), _chip(change.now), one_line(change.run_id, 80)


def _slower(slower: Slower) -> Sequence[Markup | str]:
    times = seconds_text(slower.median_s), seconds_text(slower.now_s), f"{slower.ratio:.1f}"
    return element("code", one_line(slower.name)), *times, f"{slower.num_runs}"


def _flaky(flaky: Flaky) -> Sequence[Markup | str]:
    words = ", ".join("passed" if passes else "failed" for passes in flaky.passes)
    signs = "".join("✓" if passes else "✗" for passes in flaky.passes)
    return element("code", one_line(flaky.name)), element("span", signs, role="img", aria_label=words, class_="signs")


def _chip(outcome: str) -> Markup:
    return element("span", outcome.replace("_", " "), class_=f"outcome {tone_of(outcome)}")


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Markup | str]]) -> list[Markup]:
    """A table below its title, folded where it is long; nothing where there are no rows."""
    found = list(rows)
    if not found:
        return []
    more = None
    if len(found) > MAX_LISTED:
        more = element("p", f"and {len(found) - MAX_LISTED:,} more", class_="about")
    summary = element("summary", f"{title} ({len(found):,})")
    return [element("details", summary, _rows(heads, found[:MAX_LISTED]), more, open=len(found) <= MAX_OPEN)]


def _rows(heads: Sequence[str], rows: Iterable[Sequence[Markup | str]]) -> Markup:
    head = element("thead", element("tr", [element("th", each, scope="col") for each in heads]))
    body = element("tbody", [element("tr", [_cell(n, each) for n, each in enumerate(row)]) for row in rows])
    return element("div", element("table", head, body, class_="list"), class_="scroll")


def _cell(column: int, content: Markup | str) -> Markup:
    return element("th", content, scope="row") if column == 0 else element("td", content)
