"""`rlharness doctor --listen PORT` on one host, `--peer HOST:PORT/KEY` on the others: the findings for each host.

The listener makes the key and prints it; or it is in KEY_VARIABLE on all hosts, which a launcher of many can set.
"""

import re
from collections.abc import Callable, Mapping

from harness.core.errors import UsageError
from harness.core.findings import Finding
from harness.core.redaction import REDACTED
from harness.machine.network.classification import NAMES_S
from harness.machine.network.host_matching import hosts_findings
from harness.machine.network.interface_rules import make_rules
from harness.machine.network.interfaces import read_nccl_settings, read_network
from harness.machine.network.peer_messages import KEY
from harness.machine.network.rendezvous import join, listen, new_key

DEFAULT_PORT = 29400
WAIT_S = 120.0
KEY_VARIABLE = "RLHARNESS_PEER_KEY"


async def listen_for_hosts(
    environ: Mapping[str, str], port: int, *, num_hosts: int, wait_s: float, say: Callable[[str], None]
) -> tuple[Finding, ...]:
    """Wait for the other hosts at `port`, and say what this one should use. NetworkError where they do not come."""
    key = _given_key(environ) or new_key()
    network = await read_network(limit_s=NAMES_S)
    hosts, own = await listen(network, port, key=key, num_hosts=num_hosts, wait_s=wait_s, say=say)
    return hosts_findings(hosts, own, make_rules(network, read_nccl_settings(environ)))


async def join_hosts(environ: Mapping[str, str], peer: str, *, wait_s: float) -> tuple[Finding, ...]:
    """Meet the others at `peer`, "HOST:PORT/KEY", and say what this one should use.

    UsageError if `peer` is malformed or there is no key, NetworkError if no host answers there.
    """
    address, typed, key = peer.partition("/")
    place = parse_peer(address)
    if not typed and not (key := _given_key(environ)):
        raise UsageError(
            f"--peer {peer} has no key",
            legal=f"HOST:PORT/KEY, or the key in {KEY_VARIABLE} on every host",
            remedy="copy the line `waiting for` of rlharness doctor --listen, which has the key",
        )
    _check_key(key, f"--peer {address}/{REDACTED}")
    network = await read_network(limit_s=NAMES_S)
    hosts, own = await join(network, place, key=key, wait_s=wait_s)
    return hosts_findings(hosts, own, make_rules(network, read_nccl_settings(environ)))


def _given_key(environ: Mapping[str, str]) -> str:
    """Return the key in the environment; empty if it has no key."""
    if key := environ.get(KEY_VARIABLE, ""):
        _check_key(key, KEY_VARIABLE)
    return key


def _check_key(key: str, where: str) -> None:
    if re.fullmatch(KEY, key) is None:
        raise UsageError(
            f"the key in {where} has another form",
            legal="16 hexadecimal digits",
            remedy=f"the key that rlharness doctor --listen prints; or export {KEY_VARIABLE}=$(openssl rand -hex 8)",
        )


def parse_peer(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(
            f"--peer {text} is not HOST:PORT/KEY",
            legal="a name or an address, a colon, a port from 1 to 65535, and the key that --listen prints",
            remedy=f"rlharness doctor --peer {host or text or 'HOST'}:{DEFAULT_PORT}",
        )
    return host, int(port)
