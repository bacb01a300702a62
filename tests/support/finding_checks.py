"""What holds for every finding of a machine, and how a check is called."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.bits.findings import Severity
from harness.doctor.host import Host
from harness.machine.findings import MachineCode, MachineFinding
from harness.process.children import Answer


def ask_none(limit_s: float, *steps: tuple[Any, ...]) -> list[Answer]:
    """Fail: no child is asked here."""
    raise AssertionError("no child is asked here")


def sound(findings: Iterable[MachineFinding]) -> list[MachineFinding]:
    """The findings, once each of them says what a finding has to say."""
    found = list(findings)
    for finding in found:
        assert finding.check
        assert finding.measured
        is_fine = finding.severity is Severity.FINE
        assert bool(finding.breaks) is not is_fine, finding
        assert bool(finding.remedy) is not is_fine, finding
        assert not is_fine or not (finding.exports or finding.unsets)
        for name, value in finding.exports.items():
            assert f"{name}={value}" in finding.remedy, finding
        for name in finding.unsets:
            assert name in finding.remedy, finding
    return found


def severities(findings: Iterable[MachineFinding]) -> dict[str, str]:
    """Check -> severity, of sound findings that name each check once."""
    found = sound(findings)
    by_check = {finding.check: finding.severity.value for finding in found}
    assert len(by_check) == len(found)
    return by_check


def found_by(check: Callable[[Host], Iterable[MachineFinding]], environ: dict[str, str]) -> dict[str, MachineFinding]:
    """What a check finds in an environment, by its subject."""
    return {finding.check: finding for finding in sound(check(Host(environ, ask_none)))}


class Printed(MachineCode):
    """A finding that was printed."""

    ANY = "any", Severity.FINE, "{check}", "{measured}\nbreaks: {breaks}\nremedy: {remedy}"


def as_findings(printed: Iterable[Mapping[str, Any]]) -> list[MachineFinding]:
    """Return findings that are shown as those in the output of `doctor --json`."""
    return [Printed.ANY(**{**each, "severity": Severity(each["severity"])}) for each in printed]
