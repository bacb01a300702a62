"""The content security policy of a page: its own style and script, pictures within it, and nothing else."""

import hashlib
from base64 import b64encode


def page_policy(style: str, script: str) -> str:
    """Return what stands in the page's meta element, for its style and its script as they stand there."""
    own = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
