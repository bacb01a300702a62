"""`rlharness doctor --listen PORT` on one host, `--peer HOST:PORT` on the others: the findings for each host."""

from collections.abc import Callable, Mapping

from harness.core.errors import UsageError
from harness.core.findings import Finding
from harness.machine.network.classification import NAMES_S
from harness.machine.network.host_matching import hosts_findings
from harness.machine.network.interface_rules import make_rules
from harness.machine.network.interfaces import read_nccl_settings, read_network
from harness.machine.network.rendezvous import join, listen

DEFAULT_PORT = 29400
WAIT_S = 120.0


async def listen_for_hosts(
    environ: Mapping[str, str], port: int, *, num_hosts: int, wait_s: float, say: Callable[[str], None]
) -> tuple[Finding, ...]:
    """Wait for the other hosts at `port`, and say what this one should use. NetworkError where they do not come."""
    network = await read_network(limit_s=NAMES_S)
    hosts, own = await listen(network, port, num_hosts=num_hosts, wait_s=wait_s, say=say)
    return hosts_findings(hosts, own, make_rules(network, read_nccl_settings(environ)))


async def join_hosts(environ: Mapping[str, str], peer: str, *, wait_s: float) -> tuple[Finding, ...]:
    """Meet the others at `peer`, "HOST:PORT", and say what this one should use.

    UsageError if `peer` is malformed, NetworkError if no host answers there.
    """
    network = await read_network(limit_s=NAMES_S)
    hosts, own = await join(network, parse_peer(peer), wait_s=wait_s)
    return hosts_findings(hosts, own, make_rules(network, read_nccl_settings(environ)))


def parse_peer(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(
            f"--peer {text} is not HOST:PORT",
            legal="a name or an address, a colon, and a port from 1 to 65535",
            remedy=f"rlharness doctor --peer {host or text or 'HOST'}:{DEFAULT_PORT}",
        )
    return host, int(port)
