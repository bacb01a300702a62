"""Every check at once, each with its limit; one that hangs or fails is a finding, and the others' stay."""

import asyncio
import threading
from collections.abc import Sequence

from harness.bits.findings import Severity
from harness.doctor.checks import Check, examine
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding
from tests.support.finding_checks import ask_none, sound


class Code(MachineCode):
    """Codes of these tests."""

    SEEN = "seen", FINE, "{name}", "{name} was seen"
    BAD = "bad", BROKEN, "{name}", "bad\nbreaks: much\nremedy: mend it"


FINE_ONE, BROKEN_ONE = Code.SEEN(name="fine"), Code.BAD(name="broken")
WARNING_ONE = Code.BAD(WARNING, name="warning")


def check(name: str, *findings: MachineFinding, is_timed: bool = False) -> Check:
    return Check(name, lambda host: findings, 5.0, is_timed)


def found(*checks: Check) -> tuple[MachineFinding, ...]:
    return asyncio.run(asyncio.wait_for(examine(Host({}, ask_none), checks), 20.0))


def test_the_worst_come_first_and_else_the_order_of_the_checks() -> None:
    other, timed = Code.SEEN(name="other"), Code.BAD(WARNING, name="timed")
    checks = (check("a", FINE_ONE, BROKEN_ONE), check("b", WARNING_ONE), check("c", timed, is_timed=True))
    assert found(*checks, check("d", other)) == (BROKEN_ONE, WARNING_ONE, timed, FINE_ONE, other)
    assert found() == ()


def test_a_check_that_hangs_is_a_finding_and_costs_its_limit_only() -> None:
    let_go = threading.Event()

    def block(host: Host) -> Sequence[MachineFinding]:
        let_go.wait()
        return ()

    hung, fine = sound(found(check("b", FINE_ONE), Check("stuck", block, 0.05)))
    assert (hung.check, hung.severity, hung.measured) == ("stuck", Severity.WARNING, "no answer within 0.05 s")
    assert fine == FINE_ONE
    let_go.set()


def test_a_check_that_raises_is_a_finding() -> None:
    def fail(host: Host) -> Sequence[MachineFinding]:
        raise PermissionError(13, "Permission denied", "/proc/x")

    failed, fine = sound(found(Check("odd", fail, 5.0), check("b", FINE_ONE)))
    assert failed.measured == "the check failed: PermissionError: [Errno 13] Permission denied: '/proc/x'"
    assert (failed.check, fine) == ("odd", FINE_ONE)


def test_checks_run_side_by_side_after_those_that_are_timed() -> None:
    order: list[str] = []
    meeting = threading.Barrier(2)

    def meets(name: str, *, is_timed: bool) -> Check:
        def look(host: Host) -> Sequence[MachineFinding]:
            meeting.wait(5.0)  # one after the other, they would never meet
            order.append("timed" if is_timed else "other")
            return ()

        return Check(name, look, 10.0, is_timed)

    assert found(*(meets(name, is_timed=name in "bd") for name in "abcd")) == ()
    assert order == ["timed", "timed", "other", "other"]
