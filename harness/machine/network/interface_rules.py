"""Interfaces that NCCL, Gloo and Ray would choose by their own rules, and the reasons. Pure.

The rules, as read in the libraries' sources (2026-11):

- NCCL (src/misc/socket.cc, src/os/linux.cc): the first running interface that NCCL_SOCKET_IFNAME admits; without it, of
  those named ib*, else the one in the network of NCCL_COMM_ID, else of those named neither docker*, lo* nor virbr*,
  else docker*, lo*, virbr*. NCCL_SOCKET_FAMILY restricts the addresses. It never asks MASTER_ADDR.
- Gloo in torch (ProcessGroupGloo.cpp; gloo: transport/tcp/device.cc): the first address of each interface that
  GLOO_SOCKET_IFNAME names; without it, the first address that the host's name resolves to and that is the host's own,
  else 127.0.0.1.
- Ray (src/ray/util/network_util.cc): the address from which the outside would be reached, by IPv4 or else IPv6; without
  a route, what the host's name resolves to, IPv4 before IPv6; else 127.0.0.1. All of it 127.0.0.1 where
  RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is off.
"""

import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.machine.network.interfaces import Address, HostNetwork, Interface, is_loopback, is_numeric

NCCL_VARIABLE = "NCCL_SOCKET_IFNAME"
GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
RAY_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOCALHOST = "127.0.0.1"
_NCCL_MOST_NAMES = 16
_FAMILIES = {"AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Pick:
    """Choice of one library."""

    library: str
    """NCCL, Gloo or Ray."""
    variable: str
    """Environment variable that overrides the choice."""
    interface: str
    """"" if there is none, or it is unknown."""
    address: str
    """"" if there is none, or it is unknown."""
    why: str
    """The rule that chose it, in a few words."""
    setting: str | None = None
    """The value of `variable` where the user has set it, so that it decides; None where the library chooses."""
    problem: str = ""
    """Why it cannot start at all with that setting; empty where it can."""


def make_rules(network: HostNetwork, settings: Mapping[str, str]) -> tuple[Pick, Pick, Pick]:
    """Return the choices of NCCL, Gloo and Ray on `network` under `settings` (the environment, over NCCL's files)."""
    return nccl_pick(network, settings), gloo_pick(network, settings), ray_pick(network, settings)


def is_set(variable: str, settings: Mapping[str, str]) -> bool:
    """Whether the user has decided: NCCL and torch take names of one character for none."""
    if variable == RAY_VARIABLE:
        return variable in settings
    return len(settings.get(variable, "")) > 1


# ----------------------------------------------------------------------------------------------------------------- NCCL


def nccl_pick(network: HostNetwork, settings: Mapping[str, str]) -> Pick:
    """The interface of NCCL's bootstrap, and of its transport over sockets."""
    candidates = list(_nccl_candidates(network.interfaces, settings.get("NCCL_SOCKET_FAMILY", "")))
    setting = settings.get(NCCL_VARIABLE, "")
    if is_set(NCCL_VARIABLE, settings):
        chosen = next(_admitted(candidates, setting), None)
        why = f"{NCCL_VARIABLE}={setting}"
        if chosen is None:
            return Pick("NCCL", NCCL_VARIABLE, "", "", why, setting, f"no running interface matches {setting!r}")
        return Pick("NCCL", NCCL_VARIABLE, chosen[0], chosen[1], why, setting)
    for why, found in _nccl_rules(network, candidates, settings.get("NCCL_COMM_ID", "")):
        if chosen := next(found, None):
            return Pick("NCCL", NCCL_VARIABLE, *chosen, why)
    return Pick("NCCL", NCCL_VARIABLE, "", "", "no interface is running", problem="no interface is running")


def _nccl_candidates(interfaces: Iterable[Interface], family: str) -> Iterator[tuple[str, str]]:
    """Name and address of what NCCL looks at, in its order: all of IPv4, then all of IPv6."""
    for wanted in _FAMILIES.values():
        if _FAMILIES.get(family, wanted) != wanted:  # NCCL ignores what it does not know
            continue
        for interface in interfaces:
            for address in interface.addresses:
                is_v6_loopback = wanted == socket.AF_INET6 and is_loopback(address.text)
                if address.family == wanted and interface.is_up and not is_v6_loopback:
                    yield interface.name, address.text


def _nccl_rules(
    network: HostNetwork, candidates: list[tuple[str, str]], comm_id: str
) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """NCCL's own rules in their order: the reason, and what the rule admits."""
    yield "the first interface named ib*", _admitted(candidates, "ib")
    if len(comm_id) > 1:
        yield f"in the network of NCCL_COMM_ID={comm_id}", _in_network_of(network, comm_id)
    yield "the first interface not named docker*, lo* or virbr*", _admitted(candidates, "^docker,lo,virbr")
    for name in ("docker", "lo", "virbr"):
        yield f"there is nothing but {name}*", _admitted(candidates, name)


def _admitted(candidates: Iterable[tuple[str, str]], setting: str) -> Iterator[tuple[str, str]]:
    """Those of `candidates` that a list of names admits: beginnings of names, ^ for all others, = for whole names."""
    is_not = setting.startswith("^")
    rest = setting.removeprefix("^")
    is_exact = rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.partition(":")[0])]
    names = names[:_NCCL_MOST_NAMES]
    for candidate in candidates:
        name = candidate[0]
        is_named = not names or any(name == ref if is_exact else name.startswith(ref) for ref in names)
        if is_named != is_not:
            yield candidate


def _in_network_of(network: HostNetwork, comm_id: str) -> Iterator[tuple[str, str]]:
    host = comm_id[1:].partition("]")[0] if comm_id.startswith("[") else comm_id.partition(":")[0]
    remote = host if is_numeric(host) else next(iter(network.resolved.get(host, ())), "")
    for interface in network.interfaces:
        for address in interface.addresses:
            if remote and _is_in_network(remote, address):
                yield interface.name, address.text


def _is_in_network(remote: str, address: Address) -> bool:
    own = ipaddress.ip_network(f"{address.text.partition('%')[0]}/{address.prefix}", strict=False)
    return ipaddress.ip_address(remote.partition("%")[0]) in own


# ----------------------------------------------------------------------------------------------------------------- Gloo


def gloo_pick(network: HostNetwork, settings: Mapping[str, str]) -> Pick:
    """The address to which torch's Gloo binds; of several interfaces the first."""
    setting = settings.get(GLOO_VARIABLE, "")
    if is_set(GLOO_VARIABLE, settings):
        return _gloo_as_set(network, setting)
    host_name = network.host_name
    if host_name not in network.resolved:
        return Pick("Gloo", GLOO_VARIABLE, "", "", f"the resolver did not answer for this host's name {host_name}")
    for address in network.resolved[host_name]:
        if interface := network.interface_of(address):
            return Pick("Gloo", GLOO_VARIABLE, interface, address, f"this host's name {host_name} resolves to it")
    why = f"this host's name {host_name} does not resolve to an address of this host"
    return Pick("Gloo", GLOO_VARIABLE, network.loopback, LOCALHOST, why)


def _gloo_as_set(network: HostNetwork, setting: str) -> Pick:
    why = f"{GLOO_VARIABLE}={setting}"
    by_name = {interface.name: interface for interface in network.interfaces}
    names = setting.split(",")
    for name in names:
        if name not in by_name:
            return Pick("Gloo", GLOO_VARIABLE, "", "", why, setting, f"there is no interface named {name!r}")
        if not by_name[name].addresses:
            return Pick("Gloo", GLOO_VARIABLE, name, "", why, setting, f"the interface {name} has no address")
    return Pick("Gloo", GLOO_VARIABLE, names[0], by_name[names[0]].addresses[0].text, why, setting)


# ------------------------------------------------------------------------------------------------------------------ Ray


def ray_pick(network: HostNetwork, settings: Mapping[str, str]) -> Pick:
    """The address that Ray takes for this node's own."""
    setting = settings.get(RAY_VARIABLE)
    if setting is not None and not _is_true(setting):
        return Pick("Ray", RAY_VARIABLE, network.loopback, LOCALHOST, f"{RAY_VARIABLE}={setting}", setting)
    address, why = _ray_choice(network)
    return Pick("Ray", RAY_VARIABLE, network.interface_of(address), address, why, setting)


def _ray_choice(network: HostNetwork) -> tuple[str, str]:
    if network.outgoing:
        return network.outgoing[0], "it is the source of the default route"
    by_name = sorted(network.resolved.get(network.host_name, ()), key=lambda text: ":" in text)
    if by_name:
        return by_name[0], f"there is no route to the outside, and this host's name {network.host_name} resolves to it"
    return LOCALHOST, "there is no route to the outside, and this host's name is not known"


def _is_true(setting: str) -> bool:
    return setting.lower() in ("1", "true")
