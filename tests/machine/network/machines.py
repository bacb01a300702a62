"""Pretended networks, as plain data."""

from collections.abc import Mapping

from harness.machine.network.interfaces import HostNetwork, Interface


def interface(name: str, *addresses: str, is_up: bool = True) -> Interface:
    """An interface with `addresses`, each as "10.0.0.1/24" or "fe80::1/64"."""
    return Interface(name, tuple(text.partition("/")[0] for text in addresses), is_up, name == "lo")


LO = interface("lo", "127.0.0.1/8", "::1/128")


def network(
    *interfaces: Interface,
    host_name: str = "node7",
    resolved: Mapping[str, tuple[str, ...]] | None = None,
    outgoing: tuple[str, ...] = (),
) -> HostNetwork:
    """A host with loopback and `interfaces`; its name is known to nobody unless `resolved` says so."""
    return HostNetwork((LO, *interfaces), host_name, {host_name: ()} if resolved is None else resolved, outgoing)


def reached(host: HostNetwork, *silent: str) -> dict[str, str]:
    """Every address of `host` answers but the `silent` ones."""
    texts = [address for one in host.interfaces for address in one.addresses]
    return {text: "no answer within 1 s" if text in silent else "" for text in texts}
