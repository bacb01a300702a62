"""Output of `rlharness doctor`: findings for a person, as JSON, or as shell commands that fix them."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.bits.findings import Severity
from harness.bits.redaction import redact_text
from harness.bits.text import count, one_line
from harness.machine.findings import MachineFinding
from harness.render.console import painted

VERSION = 1
TONES = {Severity.BROKEN: "1;31", Severity.WARNING: "33", Severity.FINE: "32"}
LABELS = {Severity.BROKEN: "BROKEN", Severity.WARNING: "warning", Severity.FINE: "fine"}
LABEL_WIDTH = 7
MAX_CHECK_WIDTH = 24
MAX_CHARS = 1000


def findings_text(
    findings: Sequence[MachineFinding], *, took_s: float, colour: bool, fix_command: str = "rlharness doctor --fix"
) -> str:
    """Every finding, in the order given, then how many there are of each kind.

    `fix_command` prints the fixes; empty if it should not be suggested.
    """
    width = min(MAX_CHECK_WIDTH, max((len(one_line(finding.check)) for finding in findings), default=0))
    lines = [line for finding in findings for line in _lines(finding, width, colour)]
    is_fixable = fix_command and fix_lines(each for each in findings if each.severity is not Severity.FINE)
    hint = [f'to fix the variables:  eval "$({fix_command})"'] if is_fixable else []
    return "\n".join([*lines, "", *_closing(findings, took_s, colour), *hint])


def findings_json(findings: Iterable[MachineFinding], *, exit_code: int, took_s: float) -> dict[str, Any]:
    """The findings in the order given; plain values only."""
    return {
        "version": VERSION,
        "exit_code": exit_code,
        "took_s": round(took_s, 3),
        "findings": [_parts(finding) for finding in findings],
    }


def fix_lines(findings: Iterable[MachineFinding]) -> list[str]:
    """Lines for a POSIX shell, fit for eval, that set and unset what the findings ask for.

    Each variable once: the first finding that names it decides, and what is set anew is not unset.
    """
    told = list(findings)
    exports: dict[str, str] = {}
    for finding in told:
        for name, value in finding.exports.items():
            exports.setdefault(name, value)
    unsets = dict.fromkeys(name for finding in told for name in finding.unsets if name not in exports)
    return [f"unset {name}" for name in unsets] + [
        f"export {name}={shlex.quote(value)}" for name, value in exports.items()
    ]


def _parts(finding: MachineFinding) -> dict[str, Any]:
    """The finding as it is shown, without secrets; plain values only."""
    named = {"code": finding.code.value, "check": finding.check, "severity": finding.severity.value}
    texts = {name: redact_text(getattr(finding, name)) for name in ("measured", "breaks", "remedy")}
    details = list(map(redact_text, finding.details))
    return {**named, **texts, "exports": finding.exports, "unsets": list(finding.unsets), "details": details}


def _lines(finding: MachineFinding, width: int, colour: bool) -> Iterator[str]:
    parts = _parts(finding)
    label = painted(f"{LABELS[finding.severity]:<{LABEL_WIDTH}}", TONES[finding.severity], colour)
    yield f"{label}  {one_line(finding.check):<{width}}  {one_line(parts['measured'], MAX_CHARS)}"
    indent = " " * (LABEL_WIDTH + 4)
    for name in ("breaks", "remedy"):
        if parts[name]:
            yield f"{indent}{name}: {one_line(parts[name], MAX_CHARS)}"
    for detail in parts["details"]:
        yield f"{indent}| {one_line(detail, MAX_CHARS)}"


def _closing(findings: Sequence[MachineFinding], took_s: float, colour: bool) -> Iterator[str]:
    num = Counter(finding.severity for finding in findings)
    broken = dict.fromkeys(one_line(finding.check) for finding in findings if finding.severity is Severity.BROKEN)
    texts = {
        Severity.BROKEN: f"{num[Severity.BROKEN]:,} broken ({', '.join(broken)})",
        Severity.WARNING: count(num[Severity.WARNING], "warning"),
        Severity.FINE: f"{num[Severity.FINE]:,} fine",
    }
    found = [severity for severity in Severity if num[severity]] or [Severity.FINE]
    counted = ", ".join(text for severity, text in texts.items() if num[severity]) or "nothing was checked"
    yield painted(f"{counted} in {took_s:.1f} s", TONES[found[0]], colour)
