"""Remove secrets from every word that leaves a process: traces, reports and error messages.

    names     whether a name says that its value is a secret
    shapes    formats of well-known secrets
    pairs     names and values in a text: settings, headers, query strings, JSON
    contexts  secrets that follow certain words: .netrc, variables of containers, prose
    text      texts, command lines and configurations, which may hold each other
    switch    whether a user typed --no-redact

In doubt, a value is a secret. What a test or a recorded program prints itself is not checked.

The standard library alone is needed, and this package is imported by its own name or by any other: the boot hook of a
recorded program loads it where `harness` is another package, so its modules name each other relatively, and
keep to what Python 3.9 understands.
"""

from collections.abc import Mapping

from .names import REDACTED, holds_secret, is_secret_name
from .shapes import redact_shapes
from .switch import NO_REDACT, keeps_secrets, secrets_kept
from .text import redact_argv, redact_text, redact_values

__all__ = [
    "NO_REDACT",
    "REDACTED",
    "is_secret_name",
    "keeps_secrets",
    "redact_argv",
    "redact_fields",
    "redact_text",
    "redact_values",
    "secrets_kept",
]

_OF_PACKAGES = ("package ", "library ")
"""Before the names of installed packages and mapped libraries: `package google-auth` has a version, and no secret."""


def redact_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return names and values, without the values that are secrets; a value is text, or JSON."""
    if keeps_secrets():
        return dict(fields)
    return {name: _redact_field(name, value) for name, value in fields.items()}


def _redact_field(name: str, value: str) -> str:
    if name.startswith(_OF_PACKAGES):
        return redact_shapes(value)
    is_option = name.startswith("-") or name.rpartition(" ")[2].isupper()
    return REDACTED if holds_secret(name, value, is_option=is_option) else redact_text(value, name)
