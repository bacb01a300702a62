"""The legal name that an unknown one is nearest to."""

import difflib
from collections.abc import Iterable


def nearest(name: str, legal: Iterable[str]) -> str:
    """Return a question that names the nearest legal name, or an empty text if none is near."""
    found = difflib.get_close_matches(name, list(legal), n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else ""
