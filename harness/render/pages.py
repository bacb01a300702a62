"""Pages in HTML, from templates. The one user of Jinja2.

All that a page in HTML holds is text of others: Jinja2 escapes it, and a content security policy names the digest of
the page's own style, so that nothing else would apply. No script runs, and nothing is fetched.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from harness import __version__
from harness.bits.text import count, one_line

ROOM = "harness.render"
"""Package whose directory `templates` has the templates."""


def html_page(
    template: str, *, styles: tuple[str, ...], filters: Mapping[str, Callable[..., Any]], **values: Any
) -> str:
    """Return a page with its style sheets, which lie beside the template; all that goes into it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    files = resources.files(ROOM) / "templates"
    style = "\n".join(files.joinpath(each).read_text("utf-8") for each in styles)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    allowed = f"style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    own = {"version": __version__, "style": style, "policy": f"default-src 'none'; {allowed}"}
    loader = PackageLoader(ROOM)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"one_line": one_line, "count": count, **filters}
    return environment.get_template(template).render(**own, **values).lstrip()
