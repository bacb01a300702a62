"""A report as one HTML file. The one user of Jinja2.

Everything a trace holds is text: Jinja2 escapes what goes into the page, and a content security policy names the
digests of this page's own script and style, so that nothing else would run. Nothing is fetched.
"""

from functools import cache
from importlib import resources
from importlib.util import find_spec

from harness import __version__
from harness.bits.errors import UsageError
from harness.bits.text import count, one_line
from harness.lab.report.subjects import Report
from harness.render.page_policy import page_policy
from harness.render.report.curves import measured, plots
from harness.render.report.views import alone_view, pair_view, run_rows, visible

GENERATOR = "rlharness report"
"""In every page: what a file must hold to be replaced by a new page."""
ROOM = "harness.render.report"


def require_jinja() -> None:
    """UsageError, with what to type, where the library of the templates is not installed."""
    if find_spec("jinja2") is None:
        raise UsageError("a report needs Jinja2, which is not installed", remedy="pip install 'rlharness[report]'")


def page(report: Report) -> str:
    """The whole page; TraceError where a trace cannot be read, UsageError where Jinja2 is not installed."""
    require_jinja()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(ROOM),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"one_line": one_line, "visible": visible, "count": count, "differ": differ}
    style, script = _file("report.css"), _file("copy.js")
    text: str = environment.get_template("report.html").render(
        generator=GENERATOR,
        version=__version__,
        style=style,
        script=script,
        policy=page_policy(style, script),
        name=report.subjects[0].name,
        letters=[subject.letter for subject in report.subjects],
        rows=run_rows(report),
        pairs=[pair_view(pair) for pair in report.pairs],
        alone=None if report.pairs else alone_view(report.subjects[0]),
        plots_found=plots(report),
        measured=measured(report),
    )
    return text.lstrip()


def differ(number: int) -> str:
    """The verb of so many."""
    return "differs" if number == 1 else "differ"


@cache
def _file(name: str) -> str:
    return resources.files(ROOM).joinpath("templates", name).read_text("utf-8")
