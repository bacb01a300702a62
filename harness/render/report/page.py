"""A report as one HTML file."""

from harness.lab.report.subjects import Report
from harness.render.pages import html_page
from harness.render.report.curves import measured, plots
from harness.render.report.views import alone_view, pair_view, run_rows, visible

GENERATOR = "rlharness report"
"""In every page: what a file must hold to be replaced by a new page."""
ROOM = "harness.render.report"


def page(report: Report) -> str:
    """The whole page; TraceError where a trace cannot be read."""
    return html_page(
        "report.html",
        room=ROOM,
        styles=("report/templates/report.css",),
        script="report/templates/copy.js",
        filters={"visible": visible, "differ": differ},
        generator=GENERATOR,
        name=report.subjects[0].name,
        letters=[subject.letter for subject in report.subjects],
        rows=run_rows(report),
        pairs=[pair_view(pair) for pair in report.pairs],
        alone=None if report.pairs else alone_view(report.subjects[0]),
        plots_found=plots(report),
        measured=measured(report),
    )


def differ(number: int) -> str:
    """The verb of so many."""
    return "differs" if number == 1 else "differ"
