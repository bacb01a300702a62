"""Which means of ending a process tree are enough, and which limits of a control group are too tight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.cgroup_limits import GroupLimits
from harness.doctor.containers import check_containment, check_group_limits
from harness.machine.findings import Severity
from tests.support.finding_checks import severities, sound

GB = 10**9


@pytest.mark.parametrize("in_container", [True, False])
@pytest.mark.parametrize(
    ("backend", "severity"), [("cgroup", "fine"), ("pidns", "fine"), ("subreaper", "warning"), ("", "broken")]
)
def test_containment_by_tier(backend: str, severity: str, in_container: bool) -> None:
    (finding,) = sound([check_containment(backend, {"cgroup": "no cgroup v2 here"}, in_container=in_container)])
    assert finding.severity.value == severity
    assert "no cgroup v2 here" in finding.measured
    assert not finding.remedy or ("docker" in finding.remedy) is in_container


def judged(limits: GroupLimits, environ: dict[str, str] | None = None) -> dict[str, str]:
    return severities(check_group_limits(limits, memory_bytes=64 * GB, num_cores=16, environ=environ or {}))


def test_a_machine_without_limits_is_fine() -> None:
    fine = {"memory limit": "fine", "CPU limit": "fine", "process limit": "fine"}
    assert judged(GroupLimits()) == fine
    assert judged(GroupLimits(999 * GB, 999 * GB, 16.0, 30_000, 900)) == fine


@pytest.mark.parametrize(
    ("limits", "check"),
    [
        (GroupLimits(memory_bytes=8 * GB, used_memory_bytes=7_900_000_000), "memory limit"),
        (GroupLimits(num_cpus=2.0), "CPU limit"),
        (GroupLimits(num_processes=512, num_live_processes=30), "process limit"),
        (GroupLimits(num_processes=9000, num_live_processes=8999), "process limit"),
    ],
)
def test_a_limit_that_is_felt_is_a_warning(limits: GroupLimits, check: str) -> None:
    assert {name for name, severity in judged(limits).items() if severity != "fine"} == {check}


def test_a_limit_on_memory_that_is_far_away_is_told() -> None:
    findings = check_group_limits(GroupLimits(8 * GB, GB), memory_bytes=64 * GB, num_cores=1, environ={})
    assert (findings[0].severity, findings[0].measured) == (Severity.FINE, "8.0 GB of the machine's 64.0 GB")


@given(st.floats(0.1, 64.0), st.integers(1, 64))
def test_the_threads_that_are_recommended_are_enough_and_not_too_many(num_cpus: float, num_cores: int) -> None:
    limits = GroupLimits(num_cpus=num_cpus)
    finding = sound(check_group_limits(limits, memory_bytes=GB, num_cores=num_cores, environ={}))[1]
    assert (finding.severity is Severity.WARNING) is (num_cpus < num_cores)
    if finding.exports:
        assert 1 <= int(finding.exports[0][1]) <= max(1.0, num_cpus)
        again = check_group_limits(limits, memory_bytes=GB, num_cores=num_cores, environ=dict(finding.exports))[1]
        assert again.severity is Severity.FINE, "what it asks for is enough"
