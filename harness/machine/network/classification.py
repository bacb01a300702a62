"""Pins and findings from the observations of a host's network. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from harness.machine.findings import Finding, Severity
from harness.machine.network.interface_rules import RAY_VARIABLE, Pick, export_line, in_words, make_rules
from harness.machine.network.interfaces import HostNetwork, is_loopback
from harness.machine.network.reach import Reach

CHECK = "network"
NAMES_S = 0.3
"""Limit on the resolver: this host's own name is in a file, or one answer away."""
REACH_S = 1.0
"""Limit on all connections together."""
IN_ALL_S = 1.45
MEET = "rlharness doctor --distributed in each rank of the job, which names the addresses that are not reached"


@dataclass(frozen=True, slots=True)
class Classification:
    """Pins, findings and choices that follow from the observations."""

    pins: Mapping[str, str]
    findings: tuple[Finding, ...]
    rules: tuple[Pick, ...]


def classify_network(
    network: HostNetwork,
    settings: Mapping[str, str],
    reached: Mapping[str, Reach],
    *,
    several_nodes: str = "",
    from_files: AbstractSet[str] = frozenset(),
) -> Classification:
    """Pure: pins and findings from the network, the settings and what was `reached`.

    `several_nodes` says why several nodes take part; empty where this host is alone. `from_files` are those of the
    `settings` that no variable holds.
    """
    rules = make_rules(network, settings)
    pins = {} if several_nodes else _make_pins(network, rules, reached)
    findings = [
        *_of_the_host(network, reached),
        *_of_choices(network, rules, reached, pins, several_nodes),
        *_of_settings(network, settings, reached, several_nodes, from_files),
        *_of_idle_addresses(network, rules, reached),
    ]
    if not findings:  # nothing to complain of
        findings = [_all_is_well(network, rules)]
    return Classification(pins, tuple(findings), rules)


def is_unreachable(pick: Pick, reached: Mapping[str, Reach]) -> bool:
    """Whether the address of `pick` was tried and did not answer."""
    return pick.address in reached and not reached[pick.address].is_reached


def _make_pins(network: HostNetwork, rules: Sequence[Pick], reached: Mapping[str, Reach]) -> dict[str, str]:
    """All three where one library's own choice does not answer: they shall not meet on different interfaces."""
    stuck = any(is_unreachable(pick, reached) for pick in rules if pick.setting is None)
    if not stuck or not _answers_at_loopback(network, reached):
        return {}
    return {pick.variable: _loopback_value(pick.variable, network) for pick in rules if pick.setting is None}


def _loopback_value(variable: str, network: HostNetwork) -> str:
    """What keeps the library of `variable` on loopback."""
    return "0" if variable == RAY_VARIABLE else network.loopback


def _answers_at_loopback(network: HostNetwork, reached: Mapping[str, Reach]) -> bool:
    loopback = [i for i in network.interfaces if i.name == network.loopback]
    return any(reached[a.text].is_reached for i in loopback for a in i.addresses if a.text in reached)


# ------------------------------------------------------------------------------------------------------------- findings


def _of_the_host(network: HostNetwork, reached: Mapping[str, Reach]) -> Iterable[Finding]:
    if not any(interface.is_up and interface.addresses for interface in network.interfaces):
        yield Finding(
            CHECK,
            Severity.BROKEN,
            "no interface is up, not even loopback",
            "every connection between processes of this host: Ray, torchrun, MASTER_ADDR=localhost",
            "ip link set lo up",
        )
    elif not reached:
        yield Finding(
            CHECK,
            Severity.WARNING,
            f"this host's own addresses could not be tried within {IN_ALL_S:g} s",
            "NCCL, Gloo and Ray may hang",
            "run rlharness doctor again when the machine is less busy",
        )
    elif not _answers_at_loopback(network, reached):
        yield Finding(
            CHECK,
            Severity.BROKEN,
            "loopback does not answer: 127.0.0.1 cannot be connected to",
            "every connection between processes of this host: Ray, torchrun, MASTER_ADDR=localhost",
            "ip link set lo up",
        )
    if network.host_name not in network.resolved:
        yield Finding(
            CHECK,
            Severity.WARNING,
            f"the resolver did not answer for this host's name {network.host_name} within {NAMES_S:g} s",
            "Gloo queries it whenever a process group starts, and waits",
            f"echo 127.0.0.1 {network.host_name} >> /etc/hosts",
        )


def _of_choices(
    network: HostNetwork,
    rules: Iterable[Pick],
    reached: Mapping[str, Reach],
    pins: Mapping[str, str],
    several_nodes: str,
) -> Iterable[Finding]:
    """What the libraries would choose by themselves, by address: one cause, one finding. Loopback is one of its own."""
    stuck: dict[str, list[Pick]] = {}
    for pick in rules:
        if pick.setting is None and is_unreachable(pick, reached) and not is_loopback(pick.address):
            stuck.setdefault(pick.address, []).append(pick)
    for address, those in stuck.items():
        libraries = in_words([pick.library for pick in those])
        why = "; ".join(f"{pick.library}: {pick.why}" for pick in those)
        measured = f"this host cannot reach its own address {_at(network, address)}: {reached[address].problem}"
        if several_nodes:
            yield Finding(
                CHECK,
                Severity.BROKEN,
                measured,
                f"{libraries} will start there and hang ({why}); several nodes take part ({several_nodes}), "
                "and loopback does not reach the other nodes",
                MEET,
            )
        else:
            remedy = export_line(pins.items()) if pins else ""
            breaks = f"{libraries} will start there and hang ({why})"
            yield Finding(CHECK, Severity.BROKEN, measured, breaks, remedy, tuple(pins.items()))


def _of_settings(
    network: HostNetwork,
    settings: Mapping[str, str],
    reached: Mapping[str, Reach],
    several_nodes: str,
    from_files: AbstractSet[str],
) -> Iterable[Finding]:
    """What the user set, where it cannot work. It is never changed."""
    without = {pick.variable: _without(pick, network, settings) for pick in make_rules(network, settings)}
    for pick in make_rules(network, settings):
        if pick.setting is None or not (pick.problem or is_unreachable(pick, reached)):
            continue
        breaks = f"{pick.library} will " + ("refuse to start" if pick.problem else "start there and hang")
        problem = pick.problem or (
            f"this host cannot reach its own address {_at(network, pick.address)}: {reached[pick.address].problem}"
        )
        exports: tuple[tuple[str, str], ...] = ()
        unsets: tuple[str, ...] = ()
        if pick.variable in from_files:
            remedy = f"remove {pick.variable} from nccl.conf, where NCCL reads it"
        elif not is_unreachable(without[pick.variable], reached):
            unsets = (pick.variable,)
            remedy = f"unset {pick.variable}"
        elif several_nodes:
            remedy = MEET
        else:
            exports = ((pick.variable, _loopback_value(pick.variable, network)),)
            remedy = export_line(exports)
        measured = f"{pick.variable}={pick.setting}: {problem}"
        yield Finding(CHECK, Severity.BROKEN, measured, breaks, remedy, exports, unsets)


def _without(pick: Pick, network: HostNetwork, settings: Mapping[str, str]) -> Pick:
    """What the library of `pick` would pick by its own rules."""
    own = {name: value for name, value in settings.items() if name != pick.variable}
    return next(other for other in make_rules(network, own) if other.library == pick.library)


def _of_idle_addresses(network: HostNetwork, rules: Iterable[Pick], reached: Mapping[str, Reach]) -> Iterable[Finding]:
    """Addresses that do not answer, and that nothing picks now."""
    picked = {pick.address for pick in rules}
    running = {one.name for one in network.interfaces if one.is_up and not one.is_loopback}
    silent = [
        text
        for text, reach in reached.items()
        if not reach.is_reached and reach.is_ready and text not in picked and network.interface_of(text) in running
    ]
    if silent:
        those = ", ".join(f"{_at(network, text)}: {reached[text].problem}" for text in silent)
        yield Finding(
            CHECK,
            Severity.WARNING,
            f"this host cannot reach its own address {those}",
            "connections to it hang; NCCL, Gloo and Ray do not use it now",
            f"ip route get {silent[0]}; iptables -S INPUT",
        )


def _all_is_well(network: HostNetwork, rules: Iterable[Pick]) -> Finding:
    answering = ", ".join(i.name for i in network.interfaces if i.is_up and i.addresses)
    chosen = ", ".join(f"{pick.library} {pick.interface or 'nothing'} {pick.address}".strip() for pick in rules)
    return Finding(CHECK, Severity.FINE, f"this host reaches itself on {answering}; picked: {chosen}")


def unreachable(rules: Iterable[Pick], reached: Mapping[str, Reach]) -> list[str]:
    """The addresses, with their interfaces, that libraries would choose by themselves and that do not answer."""
    stuck = {pick.address: pick for pick in rules if pick.setting is None and is_unreachable(pick, reached)}
    return [f"{address} ({pick.interface})" for address, pick in stuck.items()]


def _at(network: HostNetwork, address: str) -> str:
    return f"{address} ({network.interface_of(address)})"
