"""Pages in HTML and Markdown, from templates. The one user of Jinja2.

All that a page in HTML holds is text of others: Jinja2 escapes it, and a content security policy names the digests of
the page's own style and script, so that nothing else would run. Nothing is fetched.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from harness import __version__
from harness.bits.text import count, one_line

ROOM = "harness.render"
"""Package whose directory `templates` has the templates, unless another one is named."""
Filters = Mapping[str, Callable[..., Any]]


def from_template(template: str, *, filters: Filters, room: str = ROOM, **values: Any) -> str:
    """Return a text from a template; what goes into HTML is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader(room),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"one_line": one_line, "count": count, **filters}
    return environment.get_template(template).render(**values).lstrip()


def html_page(template: str, *, styles: tuple[str, ...], script: str, **values: Any) -> str:
    """Return a page with its sheets and its script, named by their paths below harness/render."""
    files = resources.files(ROOM)
    style = "\n".join(files.joinpath(each).read_text("utf-8") for each in styles)
    code = files.joinpath(script).read_text("utf-8")
    own = f"style-src '{_digest(style)}'; script-src '{_digest(code)}'; img-src data:"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    return from_template(template, version=__version__, style=style, script=code, policy=policy, **values)


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
