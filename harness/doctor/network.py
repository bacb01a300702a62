"""The preflight of a run, as findings: whether NCCL, Gloo and Ray would hang on this host."""

from collections.abc import Sequence

from harness.doctor.host import Host
from harness.machine.findings import Finding
from harness.machine.network.preflight import preflight


async def inspect_network(host: Host) -> Sequence[Finding]:
    """Check the network for distributed programs; about 1.5 s at most."""
    return (await preflight(host.environ, host.clock)).findings
