"""Findings on this machine, as the preflight of a run and `rlharness doctor` make them."""

import re
import shlex
from typing import Any

from harness.bits.findings import WORDS, Finding, FindingCode, Severity

BROKEN, WARNING, FINE = Severity.BROKEN, Severity.WARNING, Severity.FINE


class MachineCode(FindingCode):
    """Base of enums of codes of a machine: code, severity, subject, and the finding as a person reads it.

    That text is the sentence, then `breaks:` with the consequences and `remedy:`. A finding has values for it, and may
    have `exports`, variables to set, `unsets`, variables to unset, `details`, lines of a log, and a
    `remedy` in place of the text's. `{fix}` is a line of a shell for the variables, the remedy of a text without one.
    """

    severity: Severity
    check: str
    breaks: str

    def __new__(cls, code: str, severity: Severity, check: str, text: str) -> "MachineCode":
        member = object.__new__(cls)
        sentence, *rest = re.split(r"\n\s*(breaks|remedy): ", text.strip())
        parts = dict(zip(rest[::2], rest[1::2], strict=True))
        words = (" ".join(part.split()) for part in (sentence, parts.get("breaks", ""), parts.get("remedy", "{fix}")))
        member._value_, member.severity, member.check = code, severity, check
        member.sentence, member.breaks, member.remedy = words
        return member

    def __call__(self, severity: Severity | None = None, **values: Any) -> "MachineFinding":
        """Return a finding with this code, of its own severity unless another is given."""
        return MachineFinding(self, values, severity or self.severity)


class MachineFinding(Finding):
    """A finding, with the parts that are shown."""

    __slots__ = ()
    code: MachineCode

    @property
    def check(self) -> str:
        """Subject, in a word or two: "network", "TMPDIR"."""
        return WORDS.vformat(self.code.check, (), self.values)

    @property
    def measured(self) -> str:
        """Observation, with its values."""
        return str(self)

    @property
    def breaks(self) -> str:
        """Consequences; empty if there are none."""
        return WORDS.vformat(self.code.breaks, (), self.values)

    @property
    def fix(self) -> str:
        """The line of a shell that sets and unsets variables; empty if there is nothing to set or unset."""
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.exports.items())
        return "; ".join([f"export {exports}"] * bool(exports) + [f"unset {' '.join(self.unsets)}"] * bool(self.unsets))

    @property
    def remedy(self) -> str:
        """A command to type, or what to change; empty if there is nothing to do."""
        given = self.values.get("remedy")
        return str(given) if given else WORDS.vformat(self.code.remedy, (), {**self.values, "fix": self.fix})

    @property
    def exports(self) -> dict[str, str]:
        """Environment variables to set."""
        return dict(self.values.get("exports", {}))

    @property
    def unsets(self) -> tuple[str, ...]:
        """Environment variables to unset."""
        return tuple(self.values.get("unsets", ()))

    @property
    def details(self) -> tuple[str, ...]:
        """Lines that show it: what the part that failed has logged."""
        return tuple(self.values.get("details", ()))
