"""A finding: a code, the values that belong to it, and its sentence, which stands beside the code in one enum.

class VerdictCode(FindingCode):
    RANKS_MISSING = "ranks_missing", "compared {num_compared} of {num_ranks} ranks", "record every rank"

finding = VerdictCode.RANKS_MISSING(num_compared=3, num_ranks=8)
str(finding)     "compared 3 of 8 ranks"
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from harness.bits.text import count

MAX_NAMES = 5
"""Maximum number of names in a sentence; values in JSON are complete."""


class Severity(Enum):
    """Severity of a finding, in the order in which findings are shown."""

    BROKEN = "broken"
    WARNING = "warning"
    NOTE = "note"
    FINE = "fine"


class FindingCode(Enum):
    """Base of enums of codes. Scripts rely on the codes: none changes its meaning, while sentences may change.

    A sentence names its values in braces. A sequence is shown as its first names; `{num:step}` is "1 step", "2 steps".
    """

    sentence: str
    remedy: str

    def __new__(cls, code: str, sentence: str = "", remedy: str = "") -> "FindingCode":
        member = object.__new__(cls)
        member._value_, member.sentence, member.remedy = code, sentence, remedy
        return member

    def __call__(self, severity: Severity = Severity.NOTE, **values: Any) -> "Finding":
        """Return a finding with this code."""
        return Finding(self, values, severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `str` is its sentence, which may hold texts of others, unescaped."""

    code: FindingCode
    values: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.NOTE

    def __str__(self) -> str:
        return WORDS.vformat(self.code.sentence, (), self.values)

    @property
    def remedy(self) -> str:
        """A command to type, or what to change; empty for none."""
        return WORDS.vformat(self.code.remedy, (), self.values)


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, tuple):
            more = f" and {len(value) - MAX_NAMES} more" if len(value) > MAX_NAMES else ""
            return (", ".join(map(str, value[:MAX_NAMES])) or "none") + more
        if value is None:
            return "absent"
        if format_spec.isalpha():
            return count(value, format_spec)
        return str(format(value, format_spec or ("," if isinstance(value, int) else "")))


WORDS = _Words()
