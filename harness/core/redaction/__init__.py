"""Remove secrets from every word that leaves a process: traces, reports and error messages.

    names    whether a name says that its value is a secret
    shapes   what well-known secrets look like
    text     text: JSON, headers, query strings, settings
    words    command lines

In doubt, a value is a secret. What a test or a recorded program prints itself is not checked.

The standard library alone is needed, and this package is imported by its own name or by any other: the boot hook of a
recorded program loads it where `harness` is another package, so its modules name each other relatively, and
keep to what Python 3.9 understands.
"""

from collections.abc import Mapping

from .names import REDACTED, holds_secret, is_secret_name
from .shapes import redact_shapes
from .text import redact_text, redact_values
from .words import redact_argv

__all__ = ["REDACTED", "is_secret_name", "redact_argv", "redact_fields", "redact_text", "redact_values"]

_OF_PACKAGES = ("package ", "library ")
"""Before the names of installed packages and mapped libraries: `package google-auth` has a version, and no secret."""


def redact_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return names and values, without the values that are secrets; a value is text, or JSON."""
    return {name: _redact_field(name, value) for name, value in fields.items()}


def _redact_field(name: str, value: str) -> str:
    if name.startswith(_OF_PACKAGES):
        return redact_shapes(value)
    is_option = name.startswith("-") or name.rpartition(" ")[2].isupper()
    return REDACTED if holds_secret(name, value, is_option=is_option) else redact_text(value, name)
