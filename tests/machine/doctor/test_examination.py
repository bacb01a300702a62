"""Every check at once, each with its limit; one that hangs or fails is a finding, and the others' stay."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from harness.doctor.examination import Check, examine
from harness.doctor.host import Answer, Host
from harness.machine.findings import Finding, Severity
from tests.support.finding_checks import sound


async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
    raise AssertionError("no child is asked here")


HOST = Host({}, Path("/"), nobody)
FINE = Finding("fine", Severity.FINE, "well")
WARNING = Finding("warning", Severity.WARNING, "so so", "a little", "mend it")
BROKEN = Finding("broken", Severity.BROKEN, "bad", "much", "mend it")


def check(name: str, *findings: Finding, limit_s: float = 5.0, is_timed: bool = False) -> Check:
    async def look(host: Host) -> Sequence[Finding]:
        return findings

    return Check(name, look, limit_s, is_timed)


def found(*checks: Check) -> tuple[Finding, ...]:
    return asyncio.run(asyncio.wait_for(examine(HOST, checks), 20.0))


def test_the_worst_come_first_and_else_the_order_of_the_checks() -> None:
    other = Finding("other", Severity.FINE, "well too")
    timed = Finding("timed", Severity.WARNING, "slow", "time", "wait")
    checks = (check("a", FINE, BROKEN), check("b", WARNING), check("c", timed, is_timed=True), check("d", other))
    assert found(*checks) == (BROKEN, WARNING, timed, FINE, other)
    assert found() == ()


def test_a_check_that_hangs_is_a_finding_and_costs_its_limit_only() -> None:
    async def hang(host: Host) -> Sequence[Finding]:
        await asyncio.Event().wait()
        return ()

    hung, fine = sound(found(check("b", FINE), Check("stuck", hang, 0.05)))
    assert (hung.check, hung.severity, hung.measured) == ("stuck", Severity.WARNING, "no answer within 0.05 s")
    assert fine == FINE


def test_a_check_that_raises_is_a_finding() -> None:
    async def fail(host: Host) -> Sequence[Finding]:
        raise PermissionError(13, "Permission denied", "/proc/x")

    failed, fine = sound(found(Check("odd", fail, 5.0), check("b", FINE)))
    assert failed.check == "odd"
    assert failed.measured == "the check failed: PermissionError: [Errno 13] Permission denied: '/proc/x'"
    assert fine == FINE


def test_checks_run_side_by_side_after_those_that_are_timed() -> None:
    told: list[str] = []
    meeting = asyncio.Barrier(2)

    def meets(name: str, *, is_timed: bool) -> Check:
        async def look(host: Host) -> Sequence[Finding]:
            await asyncio.wait_for(meeting.wait(), 5.0)  # one after the other, they would never meet
            told.append("timed" if is_timed else "other")
            return ()

        return Check(name, look, 10.0, is_timed)

    checks = [meets(name, is_timed=name in "bd") for name in "abcd"]
    assert found(*checks) == ()
    assert told == ["timed", "timed", "other", "other"]
