"""What holds for every finding, whatever room it is from."""

from collections.abc import Iterable

from harness.machine.findings import Finding, Severity


def sound(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, once each of them says what a finding has to say."""
    found = list(findings)
    for finding in found:
        assert finding.check
        assert finding.measured
        is_fine = finding.severity is Severity.FINE
        assert bool(finding.breaks) is not is_fine, finding
        assert bool(finding.remedy) is not is_fine, finding
        assert not is_fine or not (finding.exports or finding.unsets)
        for name, value in finding.exports:
            assert f"export {name}={value}" in finding.remedy, finding
        for name in finding.unsets:
            assert name in finding.remedy, finding
    return found


def severities(findings: Iterable[Finding]) -> dict[str, str]:
    """Check -> severity, of sound findings that name each check once."""
    found = sound(findings)
    told = {finding.check: finding.severity.value for finding in found}
    assert len(told) == len(found)
    return told
