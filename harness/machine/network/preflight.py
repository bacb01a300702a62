"""Would a distributed program on this host hang in its network? Answered in at most 1.5 s, before it is started.

    read interfaces, routes, names ─▶ connect to every own address, all at once ─▶ what would NCCL, Gloo and Ray pick?
        ─▶ one of them picks an address that this host cannot reach, and several nodes do not take part
              ─▶ pins: each of the three variables that the user has not set, to loopback
        ─▶ findings: what was seen, what it breaks, what to type

Loopback reaches every process of a host, and carries the bootstrap only: NCCL's data goes over NVLink and shared memory
all the same. Between hosts it connects no processes.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding
from harness.machine.network.interfaces import (
    RAY_VARIABLE,
    HostNetwork,
    Pick,
    is_loopback,
    is_numeric,
    make_rules,
    reach_own,
    read_nccl_settings,
    read_network,
)
from harness.process.clock import Clock

NAMES_S = 0.3
"""Limit on the resolver: this host's own name is in a file, or one answer away."""
REACH_S = 1.0
"""Limit on all connections together."""
IN_ALL_S = 1.45
NODE_COUNTS = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
"""Variables in which torchrun and Slurm give the number of nodes; torchrun's may be a range, "1:4"."""
SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
"""Number of processes in all, and of those on this node."""
MEET = "set its variable on this host to an interface that the other nodes reach; rlharness doctor on each node"


class NetworkCode(MachineCode):
    """Codes of the network of a host."""

    # fmt: off
    NO_INTERFACE = "no_interface", BROKEN, "network", """
        no interface is up, not even loopback
        breaks: every connection between processes of this host: Ray, torchrun, MASTER_ADDR=localhost
        remedy: ip link set lo up"""
    NO_LOOPBACK = "no_loopback", BROKEN, "network", """
        loopback does not answer: 127.0.0.1 cannot be connected to
        breaks: every connection between processes of this host: Ray, torchrun, MASTER_ADDR=localhost
        remedy: ip link set lo up"""
    NOT_TRIED = "not_tried", WARNING, "network", """
        this host's own addresses could not be tried within {limit_s} s
        breaks: NCCL, Gloo and Ray may hang
        remedy: run rlharness doctor again when the machine is less busy"""
    NAME_UNANSWERED = "name_unanswered", WARNING, "network", """
        the resolver did not answer for this host's name {name} within {limit_s} s
        breaks: Gloo queries it whenever a process group starts, and waits
        remedy: echo 127.0.0.1 {name} >> /etc/hosts"""
    UNREACHABLE = "unreachable", BROKEN, "network", """
        this host cannot reach its own address {where}: {problem}
        breaks: {libraries} will start there and hang ({why})"""
    UNREACHABLE_OF_SEVERAL = "unreachable_of_several", BROKEN, "network", f"""
        this host cannot reach its own address {{where}}: {{problem}}
        breaks: {{libraries}} will start there and hang ({{why}}); several nodes take part ({{nodes}}), and loopback
          does not reach the other nodes
        remedy: {MEET}"""
    SETTING = "setting", BROKEN, "network", """
        {variable}={setting}: {problem}
        breaks: {library} will {does}
        remedy: {by_hand}{fix}"""
    REACHED = "reached", FINE, "network", "this host reaches itself on {answering}; picked: {chosen}"
    # fmt: on


@dataclass(frozen=True, slots=True)
class Preflight:
    """Findings of the preflight."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for work on this host alone; empty where nothing is wrong, or these would not help."""
    findings: tuple[MachineFinding, ...] = ()
    rules: tuple[Pick, ...] = ()
    reached: Mapping[str, str] = field(default_factory=dict)
    """Why this host does not reach each own address; empty for one that it reaches."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report of a run that sets the pins: their purpose, and what stays broken."""
        unsolved = [
            f"{finding}; {finding.breaks}" + (f"; remedy: {finding.remedy}" if finding.remedy else "")
            for finding in self.findings
            if finding.severity is BROKEN and not (self.pins and finding.exports == self.pins)
        ]
        if not self.pins:
            return tuple(unsolved)
        stuck = {pick.address: pick.interface for pick in self.rules if _is_stuck(pick, self.reached)}
        where = _in_words([f"{address} ({interface})" for address, interface in stuck.items()])
        settings = " ".join(f"{name}={value}" for name, value in self.pins.items())
        return (f"this host cannot reach its own address {where}: every file is given {settings}", *unsolved)


async def preflight(environ: Mapping[str, str], clock: Clock) -> Preflight:
    """Check the network of this host for a distributed program with the environment `environ`; at most 1.5 s."""
    begun_s = clock.monotonic_s()
    master = environ.get("MASTER_ADDR", "")
    network = await read_network((master,) if master and not is_numeric(master) else (), limit_s=NAMES_S)
    addresses = [address for interface in network.interfaces for address in interface.addresses]
    remaining_s = IN_ALL_S - (clock.monotonic_s() - begun_s)
    try:
        reached = await asyncio.wait_for(reach_own(addresses, limit_s=min(REACH_S, remaining_s)), remaining_s)
    except TimeoutError:
        reached = {}
    settings, nodes = read_nccl_settings(environ), why_several_nodes(environ, network)
    from_files = settings.keys() - environ.keys()
    return classify_network(network, settings, reached, several_nodes=nodes, from_files=from_files)


def why_several_nodes(environ: Mapping[str, str], network: HostNetwork) -> str:
    """The variable, with its value, that says that several nodes take part; empty where none does.

    A name that does not resolve counts as another node: a missing pin is reported, a wrong one is not.
    """
    numbers = {name: int(last) for name, value in environ.items() if (last := value.rpartition(":")[2]).isdecimal()}
    for name in NODE_COUNTS:
        if numbers.get(name, 0) > 1:
            return f"{name}={environ[name]}"
    for all_ranks, local in SIZES:
        if local in environ and numbers.get(all_ranks, 0) > numbers.get(local, 0):
            return f"{all_ranks}={environ[all_ranks]} over {local}={environ[local]}"
    master = environ.get("MASTER_ADDR", "")
    addresses = (master,) if master and is_numeric(master) else network.resolved.get(master, ())
    is_here = any(is_loopback(address) or network.interface_of(address) for address in addresses)
    if master and master not in ("localhost", network.host_name) and not is_here:
        return f"MASTER_ADDR={master}, which is not this host"
    return ""


def classify_network(
    network: HostNetwork,
    settings: Mapping[str, str],
    reached: Mapping[str, str],
    *,
    several_nodes: str = "",
    from_files: AbstractSet[str] = frozenset(),
) -> Preflight:
    """Return pins and findings for the network, the settings and what was `reached`.

    `several_nodes` says why several nodes take part; empty where this host is alone. `from_files` are those of the
    `settings` that no variable holds.
    """
    rules = make_rules(network, settings)
    loopback = [text for i in network.interfaces if i.name == network.loopback for text in i.addresses]
    has_loopback = any(reached.get(text) == "" for text in loopback)
    pins = {}
    if not several_nodes and has_loopback and any(_is_stuck(pick, reached) for pick in rules):
        # all three where one library's own choice does not answer: they shall not meet on different interfaces
        pins = {pick.variable: _on_loopback(pick, network) for pick in rules if pick.setting is None}
    findings = [
        *_of_host(network, reached, has_loopback=has_loopback),
        *_of_choices(network, rules, reached, pins, several_nodes),
        *_of_settings(network, settings, reached, several_nodes, from_files),
    ]
    if not findings:
        answers = {text for text, problem in reached.items() if not problem}
        answering = ", ".join(i.name for i in network.interfaces if answers & {*i.addresses})
        chosen = ", ".join(f"{pick.library} {pick.interface or 'nothing'} {pick.address}".strip() for pick in rules)
        findings = [NetworkCode.REACHED(answering=answering, chosen=chosen)]
    return Preflight(pins, tuple(findings), rules, reached)


def _is_stuck(pick: Pick, reached: Mapping[str, str]) -> bool:
    """Whether a library would choose an address by itself that does not answer."""
    return pick.setting is None and _is_unreachable(pick, reached)


def _is_unreachable(pick: Pick, reached: Mapping[str, str]) -> bool:
    return bool(reached.get(pick.address))


def _on_loopback(pick: Pick, network: HostNetwork) -> str:
    """The value of the variable of `pick` that keeps its library on loopback."""
    return "0" if pick.variable == RAY_VARIABLE else network.loopback


def _in_words(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _at(network: HostNetwork, address: str) -> str:
    return f"{address} ({network.interface_of(address)})"


def _of_host(network: HostNetwork, reached: Mapping[str, str], *, has_loopback: bool) -> Iterator[MachineFinding]:
    if not any(interface.is_up and interface.addresses for interface in network.interfaces):
        yield NetworkCode.NO_INTERFACE()
    elif not reached:
        yield NetworkCode.NOT_TRIED(limit_s=IN_ALL_S)
    elif not has_loopback:
        yield NetworkCode.NO_LOOPBACK()
    if network.host_name not in network.resolved:
        yield NetworkCode.NAME_UNANSWERED(name=network.host_name, limit_s=NAMES_S)


def _of_choices(
    network: HostNetwork,
    rules: Sequence[Pick],
    reached: Mapping[str, str],
    pins: Mapping[str, str],
    nodes: str,
) -> Iterator[MachineFinding]:
    """What the libraries would choose by themselves, by address: one cause, one finding. Loopback is one of its own."""
    stuck = [pick for pick in rules if _is_stuck(pick, reached) and not is_loopback(pick.address)]
    code = NetworkCode.UNREACHABLE_OF_SEVERAL if nodes else NetworkCode.UNREACHABLE
    for address in dict.fromkeys(pick.address for pick in stuck):
        those = [pick for pick in stuck if pick.address == address]
        libraries = _in_words([pick.library for pick in those])
        why = "; ".join(f"{pick.library}: {pick.why}" for pick in those)
        where, problem = _at(network, address), reached[address]
        yield code(where=where, problem=problem, libraries=libraries, why=why, nodes=nodes, exports=pins)


def _of_settings(
    network: HostNetwork,
    settings: Mapping[str, str],
    reached: Mapping[str, str],
    nodes: str,
    from_files: AbstractSet[str],
) -> Iterator[MachineFinding]:
    """What the user set, where it cannot work. It is never changed."""
    for pick in make_rules(network, settings):
        if pick.setting is None or not (pick.problem or _is_unreachable(pick, reached)):
            continue
        others = {name: value for name, value in settings.items() if name != pick.variable}
        by_itself = next(other for other in make_rules(network, others) if other.library == pick.library)
        fix: dict[str, Any]
        if pick.variable in from_files:
            fix = {"by_hand": f"remove {pick.variable} from nccl.conf, where NCCL reads it"}
        elif not _is_unreachable(by_itself, reached):
            fix = {"by_hand": "", "unsets": (pick.variable,)}
        elif nodes:
            fix = {"by_hand": MEET}
        else:
            fix = {"by_hand": "", "exports": {pick.variable: _on_loopback(pick, network)}}
        problem, does = pick.problem, "refuse to start"
        if not problem:
            problem = f"this host cannot reach its own address {_at(network, pick.address)}: "
            problem, does = problem + reached[pick.address], "start there and hang"
        fix |= {"variable": pick.variable, "setting": pick.setting, "library": pick.library}
        yield NetworkCode.SETTING(problem=problem, does=does, **fix)
