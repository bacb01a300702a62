"""The page of a run: one HTML file that holds its data, its style and its script, and fetches nothing.

Names and output are other people's text. Elements escape it, the script writes it as text, and a content security
policy names the digests of this page's own script and style, so that nothing else would run.
"""

from functools import cache
from importlib import resources

from harness import __version__
from harness.bits.text import count
from harness.render.page_policy import page_policy
from harness.render.run_page import sections
from harness.render.run_page.failures import failure_sections, failures_of
from harness.render.run_page.markup import Markup, element
from harness.render.run_page.timeline_data import MAX_TESTS, script_json, timeline_data
from harness.runner.records.run_comparison import Comparison
from harness.runner.records.run_record import RunRecord
from harness.runner.records.stats import RunState

GENERATOR = "rlharness run"
STYLES = (
    ("harness.render.report", "templates/report.css"),
    ("harness.render.run_page", "assets/run_page.css"),
)
SCRIPTS = (
    ("harness.render.report", "templates/theme.js"),
    ("harness.render.run_page", "assets/timeline.js"),
    ("harness.render.run_page", "assets/outcomes.js"),
)


def run_page(record: RunRecord, state: RunState, comparison: Comparison | None) -> str:
    """The whole page. Reads the outputs of the failed files."""
    failures = failures_of(state)
    data = timeline_data(record, {each.unit.path: number for number, each in enumerate(failures)})
    style, script = ("\n".join(_file(*name) for name in names) for names in (STYLES, SCRIPTS))
    policy = page_policy(style, script)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=GENERATOR),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{sections.verdict_text(record.exit_code)} · run {record.run_id} · rlharness"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    main = element(
        "main",
        sections.banner(record, state),
        sections.figures(record),
        _timeline(data["hidden"]),
        sections.changes(comparison),
        _failures(failure_sections(failures, state), len(failures)),
        sections.slowest(record),
        _outcomes(),
    )
    footer = element(
        "footer",
        element("p", f"Written by rlharness {__version__}. This page is self-contained and makes no network requests."),
    )
    scripts = [
        element("script", Markup(script_json(data)), type="application/json", id="data"),
        element("script", Markup(script)),
    ]
    return f"<!doctype html>\n{element('html', head, element('body', _top(), main, footer, scripts), lang='en')}\n"


def _top() -> Markup:
    choices = [
        element(
            "label",
            element("input", type="radio", name="theme", value=choice, checked=choice == "auto"),
            element("span", choice),
        )
        for choice in ("auto", "light", "dark")
    ]
    return element(
        "header",
        element("p", "rlharness ", element("b", "run"), class_="mark"),
        element("fieldset", element("legend", "Colours"), choices, class_="theme", hidden=True),
        class_="top",
    )


def _timeline(num_hidden: int) -> Markup:
    label = (
        "Files by GPU and CPU slot over time."
        " Left and right arrow keys move along a row, up and down to another row,"
        " Enter into the tests of a file and Escape back; plus and minus zoom, 0 shows the whole run."
        " The list of outcomes below has the same files and tests."
    )
    buttons = [
        element("button", sign, type="button", data_zoom=name, aria_label=words)
        for sign, name, words in (
            ("+", "in", "Zoom in"),
            ("-", "out", "Zoom out"),
            ("whole run", "reset", "Show the whole run"),
        )
    ]
    hidden = None
    if num_hidden:
        rest = f"{count(num_hidden, 'short passed test')} not shown: the page holds {MAX_TESTS:,} tests."
        hidden = element("p", rest, class_="about")
    return element(
        "section",
        element("h2", "Timeline", id="timeline"),
        element("div", element("p", class_="keys", id="legend"), element("p", buttons, class_="zoom"), class_="bar"),
        element("div", element("canvas"), class_="frame", tabindex=0, role="application", aria_label=label),
        element("div", class_="detail", aria_live="polite"),
        hidden,
        element(
            "noscript",
            element("p", "A script draws the timeline and the list, and this browser does not run it.", class_="empty"),
        ),
        aria_labelledby="timeline",
    )


def _failures(found: list[Markup], num: int) -> Markup | None:
    if not num:
        return None
    heading = element("h2", f"Failures ({num:,})", id="failures")
    return element("section", heading, found, aria_labelledby="failures")


def _outcomes() -> Markup:
    search = element(
        "label", "Name contains ", element("input", type="search", id="search", autocomplete="off"), class_="search"
    )
    heads = [element("th", each, scope="col") for each in ("Outcome", "File or test", "Duration", "")]
    table = element("table", element("thead", element("tr", heads)), element("tbody", id="found"), class_="list")
    return element(
        "section",
        element("h2", "Outcomes", id="outcomes"),
        element("div", element("div", id="filters", role="group", aria_label="Outcomes to list"), search, class_="bar"),
        element("p", class_="about", id="num-found", aria_live="polite"),
        element("div", table, class_="scroll"),
        element("button", "Show more", type="button", id="more", hidden=True),
        aria_labelledby="outcomes",
    )


@cache
def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text("utf-8")
