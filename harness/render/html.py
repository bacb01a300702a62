"""Pages as one HTML file each. The one user of Jinja2.

All that a page holds is text of others: Jinja2 escapes it, and a content security policy names the digests of the
page's own style and script, so that nothing else would run. Nothing is fetched.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from harness import __version__
from harness.bits.text import count, one_line

ROOM = "harness.render"
"""Package whose directory `templates` has the sheet that all pages share."""


def html_page(
    template: str,
    *,
    room: str,
    styles: tuple[str, ...],
    script: str,
    filters: Mapping[str, Callable[..., Any]],
    **values: Any,
) -> str:
    """Return a page from a template of the package `room`, with sheets and a script that stand beside templates.

    A sheet is named by its path below harness/render.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(room)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"one_line": one_line, "count": count, **filters}
    files = resources.files(ROOM)
    style = "\n".join(files.joinpath(each).read_text("utf-8") for each in styles)
    code = files.joinpath(script).read_text("utf-8")
    own = f"style-src '{_digest(style)}'; script-src '{_digest(code)}'; img-src data:"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    page = environment.get_template(template)
    return page.render(version=__version__, style=style, script=code, policy=policy, **values).lstrip()


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
