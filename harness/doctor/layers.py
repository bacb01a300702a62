"""The layer at which a bootstrap failed, from the reports and logs of its ranks. Pure.

    store ─▶ (ranks of a job) ─▶ Gloo ─▶ NCCL bootstrap ─▶ NCCL transport ─▶ first collective

Each layer chooses its own path through the network, so a remedy for one does not help another. The first layer that not
every rank has passed is the one to fix. NCCL starts in one call; its log shows how far it came.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.machine.findings import BROKEN, FINE, MachineCode, MachineFinding

MAX_DETAILS = 6
"""Lines of one log that are shown."""
NUM_FIRST = 2
"""Of those, from its beginning: the first has the cause more often; what follows it are its consequences."""
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


class LayerCode(MachineCode):
    """Codes of the layers of a bootstrap."""

    # fmt: off
    PASSED = "passed", FINE, "{layer}", "{measured}"
    START = "start", BROKEN, "torch", """
        {measured}
        breaks: anything distributed
        remedy: python -c 'import torch' where it cannot be imported; --backend gloo tries the layers without GPUs"""
    STORE = "store", BROKEN, "store", """
        {measured}
        breaks: init_process_group, before any backend is asked
        remedy: set MASTER_ADDR to an address of rank 0's host that the others reach, MASTER_PORT to one that no
          firewall closes"""
    RANKS = "ranks_apart", BROKEN, "ranks", """
        {measured}
        breaks: init_process_group, which waits for every rank, at the address that its libraries pick
        remedy: see the launcher's log of a rank that did not come; for an address that is not reached, open the
          firewall, or set GLOO_SOCKET_IFNAME (NCCL: NCCL_SOCKET_IFNAME) on that host to an interface that the others
          reach"""
    GLOO = "gloo", BROKEN, "Gloo", """
        {measured}
        breaks: CPU collectives, barriers, and NCCL groups created after them
        remedy: GLOO_SOCKET_IFNAME names the interface whose address Gloo uses"""
    BOOTSTRAP = "nccl_bootstrap", BROKEN, "NCCL bootstrap", """
        {measured}
        breaks: the first CUDA collective, which is often inside FSDP()
        remedy: NCCL ignores MASTER_ADDR: read the interface in its log line 'Bootstrap'"""
    TRANSPORT = "nccl_transport", BROKEN, "NCCL transport", """
        {measured}
        breaks: every CUDA collective
        remedy: see the last 'via' in NCCL's log: P2P, SHM or NET"""
    COLLECTIVE = "collective", BROKEN, "first collective", """
        {measured}
        breaks: the first step of any training
        remedy: small packets pass: compare the MTU of the interfaces with what the network carries (ip link; ping -M do
          -s 8972)"""
    # fmt: on


DOES = {
    "store": "meeting at the store of rank 0",
    "ranks": "connecting every rank to every other one",
    "gloo": "connecting every pair of ranks through Gloo",
    "nccl": "coming up through NCCL",
    "collective": "adding up a megabyte over all ranks",
}
"""Activity of each layer, by its name in a report."""
Settings = Mapping[str, str | None]
LOOPBACK: Settings = {"GLOO_SOCKET_IFNAME": "lo"}
PATHS: tuple[Settings, ...] = ({"NCCL_IB_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1"})
REMEDIES: Mapping[MachineCode, tuple[Settings, ...]] = {
    LayerCode.STORE: (
        {"MASTER_PORT": None},
        {"MASTER_ADDR": "127.0.0.1"},
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": None},
    ),
    LayerCode.GLOO: (LOOPBACK,),
    LayerCode.BOOTSTRAP: ({"NCCL_SOCKET_IFNAME": "lo"},),
    LayerCode.TRANSPORT: PATHS,
    LayerCode.COLLECTIVE: (LOOPBACK, *PATHS),
}
"""Settings that may mend a layer (None: not set at all), the likeliest first; each is tried before it is shown."""


@dataclass(frozen=True, slots=True)
class RankStory:
    """The report of one process of a probe."""

    name: str
    passed: Mapping[str, float]
    """Layers it has passed, by the name in its report, with their seconds."""
    failed: Mapping[str, str]
    """Layers that raised, with the error."""
    stuck: str = ""
    """The layer it was in when it was ended."""
    is_ready: bool = True
    """Whether it could import torch, and has the GPU it needs."""
    log: str = ""
    stacks: str = ""


def classify_ranks(
    ranks: Sequence[RankStory], *, with_nccl: bool, address: str = "", job_size: int = 0
) -> Iterator[MachineFinding]:
    """Yield the layers in order up to the first that not every rank has passed; later ones are not reached.

    `address` is the store's, HOST:PORT. `job_size` is the number of ranks of a launcher's job, which also connect to
    each other by themselves; 0 where all are among `ranks`.
    """
    if not_ready := [rank for rank in ranks if not rank.is_ready]:
        telling_one = max(not_ready, key=lambda rank: bool(rank.log.strip()))  # the others may only wait for it
        yield _broken(LayerCode.START, "", [telling_one], f"{_names(not_ready)}: {_last_line(telling_one.log)}")
        return
    names = {"store": ["store"], "ranks": ["ranks"] if job_size else [], "gloo": ["Gloo"]}
    names |= {"nccl": ["NCCL bootstrap", "NCCL transport"] if with_nccl else [], "collective": ["first collective"]}
    for key, passed in names.items():
        behind = [rank for rank in ranks if passed and key not in rank.passed]
        if behind:
            code = _code_of(key, behind, with_nccl=with_nccl)
            yield _broken(code, key, behind, _describe(key, behind, job_size or len(ranks), address))
            return
        seconds = max((rank.passed[key] for rank in ranks if passed), default=0.0)
        measured = f"{job_size or len(ranks)} ranks in {seconds:.2f} s"
        yield from (LayerCode.PASSED(layer=name, measured=measured) for name in passed)


def _code_of(key: str, behind: Sequence[RankStory], *, with_nccl: bool) -> LayerCode:
    log = "\n".join(rank.log for rank in behind)
    if key == "nccl":
        return LayerCode.TRANSPORT if BOOTSTRAPPED.search(log) else LayerCode.BOOTSTRAP
    if key == "collective" and with_nccl and "NCCL INFO" in log and not TRANSPORTED.search(log):
        return LayerCode.TRANSPORT
    codes = {"store": LayerCode.STORE, "ranks": LayerCode.RANKS, "gloo": LayerCode.GLOO}
    return codes.get(key, LayerCode.COLLECTIVE)


def _describe(key: str, behind: Sequence[RankStory], num_ranks: int, address: str = "") -> str:
    does = DOES[key] + (f" at {address}" if address and key == "store" else "")
    stuck = [rank for rank in behind if rank.stuck == key]
    failed = [rank for rank in behind if key in rank.failed]
    errors = {rank.name: rank.failed[key].strip().partition("\n")[0] for rank in failed}
    parts = []
    for error in dict.fromkeys(errors.values()):
        same = [rank for rank in failed if errors[rank.name] == error]
        parts.append(f"{_names(same)} failed while {does}: {error}")
    if stuck:
        parts.append(f"{_names(stuck)} still waited there" if failed else f"{_names(stuck)} hung while {does}")
    if elsewhere := [rank for rank in behind if rank not in stuck and rank not in failed]:
        parts.append(f"{_names(elsewhere)} ended before it")
    return "; ".join(parts) + (f" ({num_ranks} ranks)" if num_ranks > 1 else "")


def _names(ranks: Sequence[RankStory]) -> str:
    return ", ".join(rank.name for rank in ranks)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it reported nothing"


def _broken(code: LayerCode, key: str, behind: Sequence[RankStory], measured: str) -> MachineFinding:
    return code(measured=measured, details=_details(key, behind))


def _details(key: str, behind: Sequence[RankStory]) -> tuple[str, ...]:
    details: list[str] = []
    for rank in behind:
        details += [f"{rank.name}: {line}" for line in telling_lines(rank.log)]
        details += [f"{rank.name} stood in {frame}" for frame in innermost(rank.stacks)] if rank.stuck == key else []
    return tuple(details)


def telling_lines(log: str) -> list[str]:
    """The first and last lines of a log that say something about a network, or its very last one where none does."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not UNTELLING.search(line)]
    found = [line for line in lines if TELLING.search(line)] or lines[-1:]
    return found if len(found) <= MAX_DETAILS else [*found[:NUM_FIRST], *found[NUM_FIRST - MAX_DETAILS :]]


def innermost(stacks: str, num_frames: int = 2) -> list[str]:
    """The first frames below the line of the main thread in a dump of py-spy, the innermost first."""
    lines = iter(stacks.splitlines())
    if not any("MainThread" in line for line in lines):
        return []
    frames: list[str] = []
    for line in lines:
        if not line.startswith("    ") or len(frames) == num_frames:
            break
        frames.append(" ".join(line.split()))
    return frames
