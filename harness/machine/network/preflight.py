"""Would a distributed program on this host hang in its network? Answered in at most 1.5 s, before it is started.

    read interfaces, routes, names ─▶ connect to every own address, all at once ─▶ what would NCCL, Gloo and Ray pick?
        ─▶ one of them picks an address that this host cannot reach, and several nodes do not take part
              ─▶ pins: each of the three variables that the user has not set, to loopback
        ─▶ findings: what was seen, what it breaks, what to type

Loopback reaches every process of a host, and carries the bootstrap only: NCCL's data goes over NVLink and shared memory
all the same. Between hosts it connects no processes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.machine.findings import Finding, Severity
from harness.machine.network.classification import IN_ALL_S, NAMES_S, REACH_S, classify_network, unreachable
from harness.machine.network.interface_rules import Pick, in_words
from harness.machine.network.interfaces import Interface, read_nccl_settings, read_network
from harness.machine.network.reach import Reach, reach_own
from harness.machine.network.several_nodes import names_to_resolve, why_several_nodes
from harness.process.clock import Clock


@dataclass(frozen=True, slots=True)
class Preflight:
    """Findings of the preflight."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for work on this host alone; empty where nothing is wrong, or cannot be mended so."""
    findings: tuple[Finding, ...] = ()
    rules: tuple[Pick, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    reached: Mapping[str, Reach] = field(default_factory=dict)
    """Result of connecting to each own address."""
    took_s: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report of a run that sets the pins: what they are for, and what they do not mend."""
        mended = tuple(self.pins.items())
        unmended = [
            f"{finding.measured}; {finding.breaks}" + (f"; remedy: {finding.remedy}" if finding.remedy else "")
            for finding in self.findings
            if finding.severity is Severity.BROKEN and not (mended and finding.exports == mended)
        ]
        if not self.pins:
            return tuple(unmended)
        settings = " ".join(f"{name}={value}" for name, value in mended)
        where = in_words(unreachable(self.rules, self.reached))
        return (f"this host cannot reach its own address {where}: every file is given {settings}", *unmended)


async def preflight(environ: Mapping[str, str], clock: Clock) -> Preflight:
    """Check the network of this host for a distributed program with the environment `environ`; at most 1.5 s."""
    begun_s = clock.monotonic_s()
    network = await read_network(names_to_resolve(environ), limit_s=NAMES_S)
    addresses = [address for interface in network.interfaces for address in interface.addresses]
    try:
        remaining_s = IN_ALL_S - (clock.monotonic_s() - begun_s)
        probing = reach_own(addresses, clock, limit_s=min(REACH_S, remaining_s))
        reached = await asyncio.wait_for(probing, remaining_s)
    except TimeoutError:
        reached = {}
    settings, nodes = read_nccl_settings(environ), why_several_nodes(environ, network)
    judged = classify_network(
        network, settings, reached, several_nodes=nodes, from_files=settings.keys() - environ.keys()
    )
    return Preflight(
        pins=judged.pins,
        findings=judged.findings,
        rules=judged.rules,
        interfaces=network.interfaces,
        reached=reached,
        took_s=clock.monotonic_s() - begun_s,
    )
