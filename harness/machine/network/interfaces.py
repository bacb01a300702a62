"""The machine's network as it is: interfaces, names, routes, NCCL's files, and which own addresses can be reached.

A route is asked for by connecting a UDP socket, which sends no packet. The kernel completes a connection to an own
address without this process's help, so that a busy machine is not taken for a broken one.
"""

import asyncio
import ipaddress
import os
import pwd
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psutil

from harness.bits.files import read_text
from harness.machine.fan_out import fan_out
from harness.process.daemon_thread import in_daemon_thread

OUTSIDE = ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888"))
"""The addresses whose route Ray asks for, in its order (src/ray/util/network_util.cc)."""

MAX_CONF_BYTES = 1 << 20
AT_ONCE = 256
"""Addresses that are tried at a time, each with two sockets: below the usual limit of 1024 open files."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface."""

    text: str
    """Text of the address, with its scope if it is link-local: "192.0.2.2", "fe80::1%eth0"."""
    family: socket.AddressFamily
    prefix: int = 0
    """Leading bits that all addresses of its network share."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface, with the addresses that TCP can use."""

    name: str
    addresses: tuple[Address, ...]
    """IPv4 before IPv6, each in the kernel's order."""
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
            if any(own.text == address for own in interface.addresses):
                return interface.name
        return self.loopback if is_loopback(address) else ""

    @property
    def loopback(self) -> str:
        """The name of the loopback interface that is up with an IPv4 address; "" for none."""
        return next(
            (i.name for i in self.interfaces if i.is_loopback and i.is_up and any("." in a.text for a in i.addresses)),
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
        addresses = tuple(_address(entry.address, entry.netmask, entry.family) for entry in ip)
        flags = stats[name].flags.split(",") if name in stats else []
        found.append(Interface(name, addresses, name in stats and stats[name].isup, "loopback" in flags))
    return tuple(found)


def _address(text: str, netmask: str | None, family: int) -> Address:
    prefix = int(_parsed(netmask)).bit_count() if netmask else 0
    return Address(text, socket.AddressFamily(family), prefix)


async def read_network(names: Iterable[str] = (), *, limit_s: float) -> HostNetwork:
    """The interfaces, the routes, and what this host's own name and each of `names` resolve to.

    A resolver may hang; a name for which it has not answered after `limit_s` seconds is left out.
    """
    host_name = socket.gethostname()
    resolved: dict[str, tuple[str, ...]] = {}

    async def resolve(name: str) -> None:
        with suppress(TimeoutError):
            resolved[name] = await in_daemon_thread(partial(_resolve, name), limit_s=limit_s)

    wanted = list(dict.fromkeys((host_name, *names)))
    await fan_out(resolve, wanted, limit=len(wanted))
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


@dataclass(frozen=True, slots=True)
class Reach:
    """Result of one connection to an own address."""

    problem: str = ""
    """Why there was none; empty where there was one."""
    is_ready: bool = True
    """Whether the address could be bound at all; not yet, for a moment, where IPv6 still looks for duplicates."""

    @property
    def is_reached(self) -> bool:
        """Whether there was a connection."""
        return not self.problem


async def reach_own(addresses: Sequence[Address], *, limit_s: float) -> dict[str, Reach]:
    """Whether each of this host's `addresses` answers to the host itself within `limit_s` seconds, by address."""

    async def probe(address: Address) -> Reach:
        with socket.socket(address.family) as listener, socket.socket(address.family) as caller:
            try:
                listener.bind(_numeric(address, 0))
                listener.listen(1)
            except OSError as error:
                return Reach(f"it cannot be bound ({reason(error)})", is_ready=False)
            caller.setblocking(False)
            target = _numeric(address, listener.getsockname()[1])
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(caller, target), limit_s)
            except TimeoutError:
                return Reach(f"no answer within {limit_s:g} s")
            except OSError as error:
                return Reach(reason(error))
        return Reach()

    found = await fan_out(probe, addresses, limit=AT_ONCE)
    return {address.text: reach for address, reach in zip(addresses, found, strict=True)}


def _numeric(address: Address, port: int) -> tuple[object, ...]:
    """What the socket calls take; for an address of the link, with its scope."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(address.text, port, address.family, socket.SOCK_STREAM, flags=flags)[0][4]


def reason(error: OSError) -> str:
    """Return the system's message for `error`."""
    if error.errno and not isinstance(error, socket.gaierror):  # asyncio puts a sentence of its own in its place
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()
