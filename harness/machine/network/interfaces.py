"""The machine's network as it is: interfaces, names, routes, NCCL's files, and which own addresses can be reached.

A route is asked for by connecting a UDP socket, which sends no packet. The kernel completes a connection to an own
address without this process's help, so that a busy machine is not taken for a broken one.

Interfaces that NCCL, Gloo and Ray would choose by their own rules, and the reasons. Pure.

The rules, as read in the libraries' sources (2026-11):

- NCCL (src/misc/socket.cc, src/os/linux.cc): the first running interface that NCCL_SOCKET_IFNAME admits; without it, of
  those named ib*, else of those named neither docker*, lo* nor virbr*, else docker*, lo*, virbr*. NCCL_SOCKET_FAMILY
  restricts the addresses. It never asks MASTER_ADDR; NCCL_COMM_ID, which torch never needs, is not followed here.
- Gloo in torch (ProcessGroupGloo.cpp; gloo: transport/tcp/device.cc): the first address of each interface that
  GLOO_SOCKET_IFNAME names; without it, the first address that the host's name resolves to and that is the host's own,
  else 127.0.0.1.
- Ray (src/ray/util/network_util.cc): the address from which the outside would be reached, by IPv4 or else IPv6; without
  a route, what the host's name resolves to, IPv4 before IPv6; else 127.0.0.1. All of it 127.0.0.1 where
  RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is off.
"""

import asyncio
import ipaddress
import os
import pwd
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psutil

from harness.bits.files import read_text
from harness.process.daemon_thread import in_daemon_thread

OUTSIDE = ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888"))
"""The addresses whose route Ray asks for, in its order (src/ray/util/network_util.cc)."""

MAX_CONF_BYTES = 1 << 20
AT_ONCE = 256
"""Addresses that are tried at a time, each with two sockets: below the usual limit of 1024 open files."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface, with the addresses that TCP can use."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 before IPv6, each in the kernel's order; with its scope if it is link-local: "fe80::1%eth0"."""
    is_up: bool
    """Up and running: something is plugged in."""
    is_loopback: bool


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """Input of the libraries' rules."""

    interfaces: tuple[Interface, ...]
    """In the order in which getifaddrs(3) first shows an address of each."""
    host_name: str
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Addresses by name, in the resolver's order; () for a name that is not known. A name is missing where the resolver
    did not answer in time."""
    outgoing: tuple[str, ...] = ()
    """The address from which this host would reach the outside: by IPv4, then by IPv6; () where there is no route."""

    def interface_of(self, address: str) -> str:
        """The name of the interface that holds `address`, the loopback one for all of 127.0.0.0/8; "" for none."""
        for interface in self.interfaces:
            if address in interface.addresses:
                return interface.name
        return self.loopback if is_loopback(address) else ""

    @property
    def loopback(self) -> str:
        """The name of the loopback interface that is up with an IPv4 address; "" for none."""
        return next(
            (i.name for i in self.interfaces if i.is_loopback and i.is_up and any("." in text for text in i.addresses)),
            "",
        )


def is_loopback(address: str) -> bool:
    """Whether `address` (numeric) is this host's own on every host."""
    return _parsed(address).is_loopback


def is_numeric(text: str) -> bool:
    """Whether `text` is an address and not a name."""
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.partition("%")[0])


def read_interfaces() -> tuple[Interface, ...]:
    """Every interface, in the kernel's order; those without an address come last."""
    stats = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        ip = [entry for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        addresses = tuple(entry.address for entry in ip)
        flags = stats[name].flags.split(",") if name in stats else []
        found.append(Interface(name, addresses, name in stats and stats[name].isup, "loopback" in flags))
    return tuple(found)


async def read_network(names: Iterable[str] = (), *, limit_s: float) -> HostNetwork:
    """The interfaces, the routes, and what this host's own name and each of `names` resolve to.

    A resolver may hang; a name for which it has not answered after `limit_s` seconds is left out.
    """
    host_name = socket.gethostname()
    resolved: dict[str, tuple[str, ...]] = {}

    async def resolve(name: str) -> None:
        with suppress(TimeoutError):
            resolved[name] = await in_daemon_thread(partial(_resolve, name), limit_s=limit_s)

    await asyncio.gather(*map(resolve, {host_name, *names}))
    outgoing = tuple(address for family, outside in OUTSIDE if (address := _source_address(family, outside)))
    return HostNetwork(read_interfaces(), host_name, resolved, outgoing)


def _resolve(name: str) -> tuple[str, ...]:
    """The addresses of `name` as getaddrinfo(3) orders them, which is what Gloo and Ray ask; () where unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # unknown, or no name at all
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _source_address(family: socket.AddressFamily, outside: str) -> str:
    """The address from which a packet to `outside` would leave; "" where there is no route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 53))
            return str(probe.getsockname()[0])
    except OSError:  # no route, or no such family here
        return ""


def read_nccl_settings(environ: Mapping[str, str], machine: str = "/etc/nccl.conf") -> dict[str, str]:
    """Return NCCL's settings: `environ`, then the user's nccl.conf, then the file `machine`.

    Lines are NAME=value, the first for a name counts; those without `=` and those that begin with # are skipped
    (nccl: src/misc/param.cc). An unreadable file counts as absent.
    """
    settings = dict(environ)
    for path in (environ.get("NCCL_CONF_FILE") or _users_nccl_conf(), machine):
        try:
            lines = read_text(path, max_bytes=MAX_CONF_BYTES, errors="replace", follows_links=True).splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                settings.setdefault(name, value)
    return settings


def _users_nccl_conf() -> str:
    """In the home directory of the user's entry: NCCL does not look at HOME."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user without an entry
        return ""
    return os.path.join(home, ".nccl.conf")


# ----------------------------------------------------------------------------------------------------------- reach


async def reach_own(addresses: Sequence[str], *, limit_s: float) -> dict[str, str]:
    """Return why this host does not reach each of its `addresses` within `limit_s` seconds; empty where it does."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def probe(address: str) -> str:
        async with at_once:
            with socket.socket(_family(address)) as listener, socket.socket(_family(address)) as caller:
                try:
                    listener.bind(_numeric(address, 0))
                    listener.listen(1)
                except OSError as error:
                    return f"it cannot be bound ({reason(error)})"
                caller.setblocking(False)
                target = _numeric(address, listener.getsockname()[1])
                try:
                    await asyncio.wait_for(asyncio.get_running_loop().sock_connect(caller, target), limit_s)
                except TimeoutError:
                    return f"no answer within {limit_s:g} s"
                except OSError as error:
                    return reason(error)
        return ""

    return dict(zip(addresses, await asyncio.gather(*map(probe, addresses)), strict=True))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _numeric(address: str, port: int) -> tuple[object, ...]:
    """What the socket calls take; for an address of the link, with its scope."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0][4]


def reason(error: OSError) -> str:
    """Return the system's message for `error`."""
    if error.errno and not isinstance(error, socket.gaierror):  # asyncio puts a sentence of its own in its place
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


NCCL_VARIABLE = "NCCL_SOCKET_IFNAME"
GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
RAY_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOCALHOST = "127.0.0.1"
_NCCL_MOST_NAMES = 16
_NCCL_RULES = {
    "the first interface named ib*": "ib",
    "the first interface not named docker*, lo* or virbr*": "^docker,lo,virbr",
    **{f"there is nothing but {name}*": name for name in ("docker", "lo", "virbr")},
}
"""NCCL's own rules in their order: the reason, and the interfaces that the rule admits."""
_FAMILIES = {"AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Pick:
    """Choice of one library."""

    library: str
    """NCCL, Gloo or Ray."""
    variable: str
    """Environment variable that overrides the choice."""
    interface: str
    """Empty if there is none, or it is unknown."""
    address: str
    """Empty if there is none, or it is unknown."""
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
    for why, names in _NCCL_RULES.items():
        if chosen := next(_admitted(candidates, names), None):
            return Pick("NCCL", NCCL_VARIABLE, *chosen, why)
    return Pick("NCCL", NCCL_VARIABLE, "", "", "no interface is running", problem="no interface is running")


def _nccl_candidates(interfaces: Iterable[Interface], family: str) -> Iterator[tuple[str, str]]:
    """Return the addresses that NCCL considers, with their interfaces, in its order: all of IPv4, then all of IPv6."""
    for wanted in _FAMILIES.values():
        if _FAMILIES.get(family, wanted) != wanted:  # NCCL ignores what it does not know
            continue
        for interface in interfaces:
            for address in interface.addresses:
                is_v6_loopback = wanted == socket.AF_INET6 and is_loopback(address)
                if _family(address) == wanted and interface.is_up and not is_v6_loopback:
                    yield interface.name, address


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
    return Pick("Gloo", GLOO_VARIABLE, names[0], by_name[names[0]].addresses[0], why, setting)


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
