"""Choice of one interface for each of several hosts, so that every pair can talk; or the pair that cannot. Pure.

A library listens on one interface of its host, and the others connect to it from wherever the kernel sends them: NCCL
and Gloo do not bind the connecting side. So an interface of a host is usable where every host, itself included, has
reached it; and all hosts must use the same address family, which Gloo insists on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.errors import NetworkError
from harness.core.findings import Finding, Severity
from harness.machine.network.interface_rules import GLOO_VARIABLE, NCCL_VARIABLE, Pick, export_line, in_words

CHECK = "hosts"
FAMILIES = (4, 6)


@dataclass(frozen=True, slots=True)
class Offer:
    """An interface of a host, with the address that libraries use for its name: the first."""

    interface: str
    address: str
    family: int
    """4 or 6."""
    speed_mbps: int = 0


@dataclass(frozen=True, slots=True)
class PeerHost:
    """One of the hosts, as it introduced itself."""

    name: str
    token: str
    """Answer of its probed ports: the same address may mean another host elsewhere, as docker0's does."""
    ports: tuple[int, int]
    """The probed ports of IPv4 and IPv6; 0 where it has none."""
    offers: tuple[Offer, ...]
    """In its kernel's order, without loopback and what is of one link only."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of one connection from one host to an address of another, or of its own."""

    caller: int
    """Index of the calling host in the list."""
    host: int
    address: str
    problem: str
    """Why there was none; empty where there was one."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Everything that was found out, the same on every host."""

    hosts: tuple[PeerHost, ...]
    tried: tuple[Tried, ...]

    def problems(self, host: int, address: str) -> list[Tried]:
        """Who could not reach `address` of `host`."""
        return [t for t in self.tried if t.host == host and t.address == address and t.problem]

    def usable(self, host: int, family: int) -> list[Offer]:
        """The offers of `host` that every host has reached."""
        reached = Counter(t.address for t in self.tried if t.host == host and not t.problem)
        offers = self.hosts[host].offers
        return [offer for offer in offers if offer.family == family and reached[offer.address] == len(self.hosts)]


def choose(hosts: Hosts) -> tuple[Offer, ...]:
    """One address for each host, at which every host has reached it; NetworkError naming the pair where there is none.

    IPv4 before IPv6; an interface of one name on all hosts before several; then the fastest, then the first.
    """
    for family in FAMILIES:
        usable = [hosts.usable(number, family) for number in range(len(hosts.hosts))]
        if all(usable):
            return _best(usable)
    raise _networks_differ(hosts)


def _best(usable: Sequence[Sequence[Offer]]) -> tuple[Offer, ...]:
    by_name = [{offer.interface: offer for offer in offers} for offers in usable]
    common = [offer.interface for offer in usable[0] if all(offer.interface in names for names in by_name)]
    if common:
        name = max(common, key=lambda name: min(names[name].speed_mbps for names in by_name))
        return tuple(names[name] for names in by_name)
    return tuple(max(offers, key=lambda offer: offer.speed_mbps) for offers in usable)


def _networks_differ(hosts: Hosts) -> NetworkError:
    """Names the first pair that cannot talk, with every address that was tried between the two."""
    for number, host in enumerate(hosts.hosts):
        if not host.offers:
            return NetworkError(
                f"{host.name} has only a loopback address",
                legal="hosts with a running interface that has an address",
                remedy=f"ip -brief addr, on {host.name}",
            )
        for caller in range(len(hosts.hosts)):
            failed = [t for t in hosts.tried if (t.caller, t.host) == (caller, number) and t.problem]
            if len(failed) == len(host.offers):
                return _cannot_reach(hosts.hosts[caller], host, failed)
    names = [host.name for host in hosts.hosts]
    where = "; ".join(
        f"{names[t.caller]} to {_named(hosts.hosts[t.host], t.address)} of {names[t.host]}: {t.problem}"
        for t in hosts.tried
        if t.problem
    )
    return NetworkError(
        f"no set of one interface per host lets every pair of {', '.join(names)} connect: {where}",
        legal="per host, one interface that every host can reach over TCP, all of one address family",
        remedy="fix one of these connections",
    )


def _cannot_reach(caller: PeerHost, host: PeerHost, failed: Sequence[Tried]) -> NetworkError:
    other = "itself" if caller is host else host.name
    told = "; ".join(f"{_named(host, t.address)}: {t.problem}" for t in failed)
    source = "-i lo" if caller is host or not caller.offers else f"-s {caller.offers[0].address}"
    return NetworkError(
        f"{caller.name} cannot reach {other} on any interface: {told}",
        legal="per host, one interface that every host, including itself, can reach over TCP",
        remedy=f"iptables -I INPUT {source} -p tcp -j ACCEPT, on {host.name}; or open its firewall by other means",
    )


def _named(host: PeerHost, address: str) -> str:
    interface = next((offer.interface for offer in host.offers if offer.address == address), "")
    return f"{address} ({interface})"


def hosts_findings(hosts: Hosts, own: int, rules: Sequence[Pick]) -> tuple[Finding, ...]:
    """Return the findings for host number `own`; `rules` are the choices of its libraries."""
    try:
        chosen = choose(hosts)
    except NetworkError as error:
        breaks = f"distributed work over these {len(hosts.hosts)} hosts, which requires {error.legal}"
        return (Finding(CHECK, Severity.BROKEN, error.what, breaks, error.remedy),)
    agreed = ", ".join(f"{h.name} {o.interface} {o.address}" for h, o in zip(hosts.hosts, chosen, strict=True))
    exports = _exports((NCCL_VARIABLE, GLOO_VARIABLE), chosen[own], hosts.hosts[own])
    fine = Finding(
        CHECK,
        Severity.FINE,
        f"every pair of {len(hosts.hosts)} hosts can talk: {agreed}",
        exports=exports,
        details=(f"here: {export_line(exports)}",),
    )
    wrong: dict[tuple[str, str | None], list[Pick]] = {}
    reachable = {offer.address for offer in hosts.usable(own, chosen[own].family)}
    for pick in rules:
        if pick.address not in reachable:
            wrong.setdefault((pick.address, pick.setting), []).append(pick)
    return (fine, *(_of_rules(those, hosts, own, chosen[own]) for those in wrong.values()))


def _exports(variables: Iterable[str], chosen: Offer, host: PeerHost) -> tuple[tuple[str, str], ...]:
    """Those of `variables` that take the name of an interface, set to the one chosen. NCCL takes it for a beginning."""
    is_beginning = any(
        o.interface.startswith(chosen.interface) and o.interface != chosen.interface for o in host.offers
    )
    values = {NCCL_VARIABLE: ("=" if is_beginning else "") + chosen.interface, GLOO_VARIABLE: chosen.interface}
    return tuple((variable, values[variable]) for variable in variables if variable in values)


def _of_rules(rules: Sequence[Pick], hosts: Hosts, own: int, chosen: Offer) -> Finding:
    """What is wrong with the one address that these libraries would use here."""
    first = rules[0]
    libraries = in_words([pick.library for pick in rules])
    problems = hosts.problems(own, first.address)
    told = "; ".join(f"{hosts.hosts[t.caller].name}: {t.problem}" for t in problems) or "no other host can reach it"
    what = f"{first.address} ({first.interface})" if first.address else f"no address ({first.problem or first.why})"
    why = "; ".join(f"{pick.library}: {pick.why}" for pick in rules)
    exports = _exports([pick.variable for pick in rules], chosen, hosts.hosts[own])
    remedies = [export_line(exports)] if exports else []
    remedies += [f"ray start --node-ip-address={chosen.address}" for pick in rules if pick.library == "Ray"]
    return Finding(
        CHECK,
        Severity.BROKEN,
        f"{libraries} would use {what}: {told}",
        f"{libraries} will start there, and the other hosts wait forever ({why})",
        ", and ".join(remedies),
        exports,
    )
