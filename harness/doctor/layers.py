"""The layer at which a bootstrap failed, from the reports and logs of its ranks. Pure.

    Ray's start                                     (beside the others: it has a network set-up of its own)
    store ─▶ (ranks of a job) ─▶ Gloo ─▶ NCCL bootstrap ─▶ NCCL transport ─▶ first collective

Each layer chooses its own path through the network, so a remedy for one does not help another. The first layer that not
every rank has passed is the one to fix. NCCL starts in one call; its log shows how far it came.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.machine.findings import Finding, Severity

MAX_DETAILS = 6
"""Lines of one log that are shown."""
NUM_FIRST = 2
"""Of those, from its beginning."""
UNTELLING = re.compile(r"NumPy|_conversion_method_template|^frame #\d|^Exception raised from")
"""Log lines of torch without information on the network."""
TELLING = re.compile(
    r"error|fail|cannot be retrieved|timed? ?out|refused|unreachable|no route|denied|NCCL WARN"
    r"|Bootstrap|NET/|set by env",
    re.I,
)
"""Lines of a log that say something about a network."""

BOOTSTRAPPED = re.compile(
    r"NCCL INFO (Trees \[|Channel \d|Setting affinity|comm .* nNodes|Connected all|.*Init COMPLETE)"
)
"""Lines NCCL logs only after its ranks have met."""
TRANSPORTED = re.compile(r"NCCL INFO Connected (all|\w+ ring)")
"""Lines NCCL logs only after its channels stand; versions that connect when first used log them during a collective."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the layers."""

    name: str
    does: str
    """Activity of its ranks."""
    breaks: str
    remedies: tuple[Mapping[str, str | None], ...]
    """Settings that may mend it (None: not set at all), the likeliest first; each is tried before it is recommended."""
    by_hand: str
    """Manual remedy if none of the settings helps."""


LOOPBACK: Mapping[str, str | None] = {"GLOO_SOCKET_IFNAME": "lo"}
NCCL_PATHS: tuple[Mapping[str, str | None], ...] = (
    {"NCCL_IB_DISABLE": "1"},
    {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_SHM_DISABLE": "1"},
)

TORCH = Layer("torch", "importing torch", "anything distributed", (), "python -c 'import torch'")
RAY = Layer(
    "Ray",
    "starting Ray's head on this machine",
    "ray.init, and everything on top of it",
    ({"RAY_ADDRESS": None}, {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}),
    "see gcs_server.out and raylet.out among Ray's logs",
)
SLOW_STORE_S = 5.0
"""Start-up time of a store beyond which a rank waits for a name server."""
NAMELESS = re.compile(r"hostname of the client socket cannot be retrieved")
"""Log line of torch's store after it has waited for a name server in vain."""
RESOLVER = Layer(
    "store",
    "meeting at the store of rank 0 and waiting for a name server",
    "init_process_group, which waits at every start",
    (),
    "make the name server in /etc/resolv.conf answer, or remove it: torch asks it for the name of each client; or "
    "echo ::ffff:ADDRESS NAME >> /etc/hosts, for the address of each",
)
STORE = Layer(
    "store",
    "meeting at the store of rank 0",
    "init_process_group, before any backend is asked",
    ({"MASTER_ADDR": "127.0.0.1"}, {"MASTER_PORT": None}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": None}),
    "set MASTER_ADDR to an address of rank 0's host that the others reach, MASTER_PORT to one that no firewall closes",
)
UNANSWERED = re.compile(r"client socket has (timed out|failed to connect)")
"""Log line of torch's store on an address, not a name server, that does not answer."""
TAKEN = re.compile(r"EADDRINUSE|address already in use", re.I)
"""Error of a rank 0 whose store port is in use by another process, which the other ranks then reach."""
PORT = re.compile(r"\bport: (\d+)")
PORT_TAKEN = Layer(
    "store",
    STORE.does,
    STORE.breaks,
    ({"MASTER_PORT": None},),
    "set MASTER_PORT to a port that is free on rank 0's host: ss -ltnp there lists the ports in use",
)
RANKS = Layer(
    "ranks",
    "connecting every rank to every other one",
    "init_process_group, which waits for every rank, at the address that its libraries pick",
    (),
    "see the launcher's log of a rank that did not come; for an address that is not reached, open the firewall, or set "
    "GLOO_SOCKET_IFNAME (NCCL: NCCL_SOCKET_IFNAME) on that host to an interface that the others reach",
)
GLOO = Layer(
    "Gloo",
    "connecting every pair of ranks through Gloo",
    "CPU collectives, barriers, and NCCL groups created after them",
    (LOOPBACK,),
    "GLOO_SOCKET_IFNAME names the interface whose address Gloo uses",
)
NAMELESS_GLOO = replace(
    GLOO,
    breaks="init_process_group, which waits at every start",
    by_hand="echo 127.0.0.1 $(hostname) >> /etc/hosts, or make the name server in /etc/resolv.conf answer",
)
BOOTSTRAP = Layer(
    "NCCL bootstrap",
    "exchanging addresses through NCCL's own socket",
    "the first CUDA collective, which is often inside FSDP()",
    ({"NCCL_SOCKET_IFNAME": "lo"},),
    "NCCL ignores MASTER_ADDR: read the interface in its log line 'Bootstrap'",
)
TRANSPORT = Layer(
    "NCCL transport",
    "opening channels between the GPUs",
    "every CUDA collective",
    NCCL_PATHS,
    "see the last 'via' in NCCL's log: P2P, SHM or NET",
)
COLLECTIVE = Layer(
    "first collective",
    "adding up a megabyte over all ranks",
    "the first step of any training",
    (LOOPBACK, *NCCL_PATHS),
    "small packets pass: compare the MTU of the interfaces with what the network carries (ip link; ping -M do -s 8972)",
)
DOES = {
    "ray": RAY.does,
    "store": STORE.does,
    "ranks": RANKS.does,
    "gloo": GLOO.does,
    "nccl": "coming up through NCCL",
    "collective": COLLECTIVE.does,
}
"""Activity of each layer, by its name in a report."""


@dataclass(frozen=True, slots=True)
class RankStory:
    """The report of one process of a probe."""

    name: str
    """"rank 0", "Ray"."""
    passed: Mapping[str, float]
    """Layers it has passed, by the name in its report, with their seconds."""
    failed: Mapping[str, str]
    """Layers that raised, with the error."""
    stuck: str = ""
    """The layer it was in when it was ended."""
    is_ready: bool = True
    """Whether it could import what it needs."""
    log: str = ""
    stacks: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one layer."""

    layer: Layer
    severity: Severity
    measured: str
    details: tuple[str, ...] = ()
    is_hang: bool = False
    """Whether ranks were ended there, none has failed, and none has logged a missing answer."""

    def finding(self, settings: Mapping[str, str | None] | None = None, remedy: str = "") -> Finding:
        """The verdict as doctor shows it; `settings` mend it, as was tried."""
        settings = settings or {}
        is_broken = self.severity is Severity.BROKEN
        return Finding(
            check=self.layer.name,
            severity=self.severity,
            measured=self.measured,
            breaks=self.layer.breaks if is_broken else "",
            remedy=remedy or (self.layer.by_hand if self.severity is not Severity.FINE else ""),
            exports=tuple((name, value) for name, value in settings.items() if value is not None),
            unsets=tuple(name for name, value in settings.items() if value is None),
            details=self.details,
        )


def verdicts_of_ranks(
    ranks: Sequence[RankStory], *, with_nccl: bool, address: str = "", in_job: bool = False
) -> list[Verdict]:
    """Return the layers in order up to the first that not every rank has passed; later ones are not reached.

    `address` is the store's, HOST:PORT. The ranks of a job also connect to each other by themselves.
    """
    if not_ready := [rank for rank in ranks if not rank.is_ready]:
        telling_one = max(not_ready, key=lambda rank: bool(rank.log.strip()))  # the others may only wait for it
        return [_broken(TORCH, "import", [telling_one], f"{_names(not_ready)}: {_last_line(telling_one.log)}")]
    verdicts: list[Verdict] = []
    for key in ("store", *(("ranks",) if in_job else ()), "gloo", *(("nccl",) if with_nccl else ()), "collective"):
        behind = [rank for rank in ranks if key not in rank.passed]
        if behind:
            layer = _layer_of(key, behind, with_nccl=with_nccl)
            return [*verdicts, _broken(layer, key, behind, _how(layer, key, behind, len(ranks), address))]
        seconds = max(rank.passed[key] for rank in ranks)
        if key == "store" and seconds > SLOW_STORE_S:
            measured = f"{len(ranks)} ranks in {seconds:.2f} s: they wait for a name server that does not answer"
            verdicts.append(Verdict(RESOLVER, Severity.WARNING, measured, _details(key, ranks)))
            continue
        passed = (BOOTSTRAP, TRANSPORT) if key == "nccl" else (_layer_of(key, (), with_nccl=with_nccl),)
        verdicts += [Verdict(layer, Severity.FINE, f"{len(ranks)} ranks in {seconds:.2f} s") for layer in passed]
    return verdicts


def verdict_of_ray(story: RankStory) -> Verdict:
    """Ray's start."""
    if not story.is_ready:
        return _broken(RAY, "import", [story], f"it cannot be imported: {_last_line(story.log)}")
    if "ray" in story.passed:
        return Verdict(RAY, Severity.FINE, f"started and answered in {story.passed['ray']:.1f} s")
    return _broken(RAY, "ray", [story], _how(RAY, "ray", [story], 1))


def _layer_of(key: str, behind: Sequence[RankStory], *, with_nccl: bool) -> Layer:
    log = "\n".join(rank.log for rank in behind)
    if key == "nccl":
        return TRANSPORT if BOOTSTRAPPED.search(log) else BOOTSTRAP
    if key == "collective" and with_nccl and "NCCL INFO" in log and not TRANSPORTED.search(log):
        return TRANSPORT
    if key == "store" and NAMELESS.search(log) and not any(key in rank.failed for rank in behind):
        return RESOLVER  # whose address does not answer says so itself, and may have waited for a name as well
    if key == "store" and any(TAKEN.search(rank.failed.get(key, "")) for rank in behind):
        return PORT_TAKEN
    return {"store": STORE, "ranks": RANKS, "gloo": GLOO, "collective": COLLECTIVE}[key]


def _how(layer: Layer, key: str, behind: Sequence[RankStory], num_ranks: int, address: str = "") -> str:
    does = f"{layer.does} at {address}" if address and layer.name == STORE.name else layer.does  # torch may not say
    stuck = [rank for rank in behind if rank.stuck == key]
    failed = [rank for rank in behind if key in rank.failed]
    parts = []
    for error in dict.fromkeys(_first_line(rank.failed[key]) for rank in failed):
        same = [rank for rank in failed if _first_line(rank.failed[key]) == error]
        parts.append(f"{_names(same)} failed while {does}: {error}")
    if stuck and failed:
        parts.append(f"{_names(stuck)} still waited there")
    elif stuck:
        parts.append(f"{_names(stuck)} hung while {does}")
    if elsewhere := [rank for rank in behind if rank not in stuck and rank not in failed]:
        parts.append(f"{_names(elsewhere)} ended before it")
    if layer is PORT_TAKEN:
        port = PORT.search(" ".join(rank.failed[key] for rank in failed))
        parts.insert(0, f"port {port[1] if port else 'of the store'} is taken on this host")
    return "; ".join(parts) + (f" ({num_ranks} ranks)" if num_ranks > 1 else "")


def _names(ranks: Sequence[RankStory]) -> str:
    return ", ".join(rank.name for rank in ranks)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it reported nothing"


def _broken(layer: Layer, key: str, behind: Sequence[RankStory], measured: str) -> Verdict:
    knows_why = any(key in rank.failed or UNANSWERED.search(rank.log) for rank in behind)
    is_hang = any(rank.stuck == key for rank in behind) and not knows_why
    return Verdict(layer, Severity.BROKEN, measured, _details(key, behind), is_hang)


def for_want_of_a_name(verdict: Verdict, what: str) -> Verdict:
    """A hang that is no more than the waiting for a name server, which is asked there for `what`, and is silent."""
    layer = RESOLVER if verdict.layer.name == STORE.name else NAMELESS_GLOO
    return replace(verdict, layer=layer, measured=f"{verdict.measured}; no name server answers for {what}")


def _details(key: str, behind: Sequence[RankStory]) -> tuple[str, ...]:
    details: list[str] = []
    for rank in behind:
        details += [f"{rank.name}: {line}" for line in telling_lines(rank.log)]
        details += [f"{rank.name} stood in {frame}" for frame in innermost(rank.stacks)] if rank.stuck == key else []
    return tuple(details)


def telling_lines(log: str) -> list[str]:
    """The first and last lines of a log that say something about a network, or its very last one where none does.

    The first has the cause more often; what follows it are its consequences.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not UNTELLING.search(line)]
    found = [line for line in lines if TELLING.search(line)] or lines[-1:]
    return found if len(found) <= MAX_DETAILS else [*found[:NUM_FIRST], *found[NUM_FIRST - MAX_DETAILS :]]


def innermost(stacks: str, num_frames: int = 2) -> list[str]:
    """The first frames below the line of the main thread in a dump of py-spy, the innermost first."""
    lines = stacks.splitlines()
    starts = [number for number, line in enumerate(lines) if "MainThread" in line]
    if not starts:
        return []
    frames = lines[starts[0] + 1 :]
    end = next((number for number, line in enumerate(frames) if not line.startswith("    ")), len(frames))
    return [" ".join(line.split()) for line in frames[:end]][:num_frames]
