"""Every check of the machine at once, each with its own limit. A check that fails is a finding, not an end.

    those that are timed, then the others, at once each time:

    fan_out ─┬─ check, limit ──▶ findings
             ├─ check, limit ──▶ (too long) ──▶ a finding that says so
             └─ check, limit ──▶ (raises)   ──▶ a finding that says so

A check that may block does so in a daemon thread or in a child process: nothing here waits for a call that hangs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.doctor.host import Host
from harness.machine.fan_out import fan_out
from harness.machine.findings import Finding, Severity

Look = Callable[[Host], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    name: str
    look: Look
    limit_s: float
    is_timed: bool = False
    """Whether it measures durations, and so does not run beside checks that keep the processors busy."""


async def examine(host: Host, checks: Sequence[Check]) -> tuple[Finding, ...]:
    """Return the findings of all `checks`, the worst first, then in the order of the checks."""

    async def carry_out(check: Check) -> Sequence[Finding]:
        try:
            return await asyncio.wait_for(check.look(host), check.limit_s)
        except TimeoutError:
            return [_no_answer(check.name, f"no answer within {check.limit_s:g} s")]
        except Exception as error:  # a machine that is out of order raises what nobody expected: the others go on
            return [_no_answer(check.name, f"the check failed: {type(error).__name__}: {error}")]

    found: dict[Check, Sequence[Finding]] = {}
    for is_timed in (True, False):
        some = [check for check in checks if check.is_timed is is_timed]
        if some:
            found |= zip(some, await fan_out(carry_out, some, limit=len(some)), strict=True)
    return in_order(finding for check in checks for finding in found[check])


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings as they are shown: by severity, then in their given order."""
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    return tuple(sorted(findings, key=lambda finding: ranks[finding.severity]))


def _no_answer(name: str, measured: str) -> Finding:
    return Finding(
        name,
        Severity.WARNING,
        measured,
        breaks="every program that depends on it may hang or fail the same way",
        remedy="rlharness doctor again; if the problem stays, inspect that part of the machine by hand",
    )
