"""`doctor --distributed N`: small processes try the layers of a bootstrap, and the remedies of the one that fails.

    ranks 0..N-1 (torch) ─── each supervised, each layer with its limit ──▶ stories ──▶ layers ──▶ findings
                                                                               │
                              once more per remedy of a layer that broke  ◀────┘

The processes are supervised as tests are: a layer that hangs in a C call is ended for certain, after the stacks of its
process have been taken. Once one rank has failed, the others wait for it in vain, and are ended soon, without stacks.

    store ─▶ (ranks of a job) ─▶ Gloo ─▶ NCCL bootstrap ─▶ NCCL transport ─▶ first collective

Each layer chooses its own path through the network, so a remedy for one does not help another. The first layer that not
every rank has passed is the one to fix. NCCL starts in one call; its log shows how far it came.
"""

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from harness.doctor.children import Children, module_command
from harness.doctor.environment import Job
from harness.machine.fan_out import fan_out
from harness.machine.findings import BROKEN, FINE, MachineCode, MachineFinding
from harness.machine.network.preflight import preflight
from harness.process.clock import SystemClock
from harness.process.growing_file import read_end
from harness.process.program_output import json_objects
from harness.process.supervisor_client import ProcessEnd

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
"""Settings under which a layer may pass (None: not set), the likeliest first; each is tried before it is shown."""


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


IMPORT_S = 90.0
"""Limit on importing torch, which a cold disk makes slow."""
WALK_S = 240.0
"""Limit of one process after its imports: more than all layers' limits together."""
LAST_WORD_S = 3.0
"""Time that the other ranks have left once one has failed, to report a reason of their own."""
PATIENCE_S = 10.0
"""Interval of reports on the ranks that are still waited for."""
MASTER_ADDR = "127.0.0.1"
"""Default address of the store."""
MAX_LOG_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Parameters of the trial, and its means."""

    num_ranks: int
    backend: str
    """"gloo" or "nccl"; NCCL takes GPU n for rank n."""
    environ: Mapping[str, str]
    """Environment of this process, which a training started here would inherit."""
    children: Children
    say: Callable[[str], None] = lambda text: None
    """Called with each line of progress."""


async def find_layer(bootstrap: Bootstrap) -> tuple[MachineFinding, ...]:
    """A finding per layer, down to the first that not every rank has passed; that one with a remedy that was tried.

    Findings of the network follow: a name server that is silent, for one, looks like a layer that hangs.
    """
    found = [
        await _with_remedy(bootstrap, finding) if finding.severity is BROKEN else finding
        for finding in await _try_ranks(bootstrap, bootstrap.environ)
    ]
    return (*found, *(await preflight(bootstrap.environ, SystemClock())).findings)


async def _try_ranks(bootstrap: Bootstrap, environ: Mapping[str, str]) -> list[MachineFinding]:
    numbers = range(bootstrap.num_ranks)
    with _held_port() as port:  # where the environment names no port
        address = f"{environ.get('MASTER_ADDR', MASTER_ADDR)}:{environ.get('MASTER_PORT') or port}"
        meeting = tempfile.mkdtemp(prefix="m", dir=bootstrap.children.directory)
        shared = {"world": len(numbers), "backend": bootstrap.backend, "address": address, "meet": meeting}
        orders = {f"rank {n}": {"rank": n, "gpu": n, **shared} for n in numbers}
        stories = await _run(bootstrap, orders, environ)
    return list(classify_ranks(stories, with_nccl=bootstrap.backend == "nccl", address=address))


async def find_layer_of_job(bootstrap: Bootstrap, job: Job) -> tuple[MachineFinding, ...]:
    """The findings of this rank among all ranks of its launcher; of another rank than 0, those that break."""
    order = {"rank": job.rank, "gpu": job.gpu, "world": job.num_ranks, "backend": bootstrap.backend}
    name = f"rank {job.rank} on {socket.gethostname()}"
    stories = await _run(bootstrap, {name: {**order, "address": job.address}}, bootstrap.environ)
    with_nccl = bootstrap.backend == "nccl"
    found = classify_ranks(stories, with_nccl=with_nccl, address=job.address, job_size=job.num_ranks)
    return tuple(finding for finding in found if job.rank == 0 or finding.severity is BROKEN)


async def _with_remedy(bootstrap: Bootstrap, finding: MachineFinding) -> MachineFinding:
    """The finding with the first settings under which its layer is passed."""
    bootstrap.say(f"{finding.check}: {finding.measured}")
    tried = [_seen_by_ranks(bootstrap.environ)]
    for settings in REMEDIES.get(finding.code, ()):
        kept = {name: value for name, value in bootstrap.environ.items() if name not in settings}
        exports = {name: value for name, value in settings.items() if value is not None}
        environ = {**kept, **exports}
        is_of_nccl = any(name.startswith("NCCL_") for name in settings)
        if _seen_by_ranks(environ) in tried or (is_of_nccl and bootstrap.backend != "nccl"):
            continue
        tried.append(_seen_by_ranks(environ))
        unsets = tuple(name for name, value in settings.items() if value is None)
        changed = replace(finding, values={**finding.values, "exports": exports, "unsets": unsets})
        bootstrap.say(f"{finding.check}: trying {changed.fix}")
        if any(each.check == finding.check and each.severity is FINE for each in await _try_ranks(bootstrap, environ)):
            remedy = f"{changed.fix}   # tried: it passes this layer"
            return replace(changed, values={**changed.values, "remedy": remedy})
    return finding


def _seen_by_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    return {"MASTER_ADDR": MASTER_ADDR, **environ}


# ------------------------------------------------------------------------------------------------------------ processes


async def _run(
    bootstrap: Bootstrap, orders: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]
) -> list[RankStory]:
    """Return the stories of processes that are to meet; `orders` are their arguments by their names."""
    loop = asyncio.get_running_loop()
    running: dict[str, Path] = {}
    limits: dict[str, asyncio.Timeout] = {}

    async def carry_out(name: str) -> RankStory:
        argv = module_command("harness.doctor.probe", "rank", json.dumps(orders[name]))
        spec, end = bootstrap.children.spec(argv, environ, IMPORT_S + WALK_S, IMPORT_S), None
        running[name] = Path(spec.directory)
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limits[name]:
                end = await bootstrap.children.supervisor.run(spec)
        del running[name], limits[name]
        story = read_story(name, Path(spec.directory), end)
        if story.failed or not story.is_ready:
            for other in limits.values():
                if other.when() is None:
                    other.reschedule(loop.time() + LAST_WORD_S)
        return story

    async def report_progress() -> None:
        """A machine may be slow enough to look like one that hangs."""
        for number in count(1):
            await asyncio.sleep(PATIENCE_S)
            waits: dict[str, list[str]] = {}
            for name, directory in running.items():
                waits.setdefault(waiting_for(_records(directory)), []).append(name)
            for what, names in waits.items():
                if what:
                    bootstrap.say(f"{', '.join(names)}: not done after {number * PATIENCE_S:g} s: {what}")

    reporting = asyncio.create_task(report_progress())
    try:
        return await fan_out(carry_out, orders, limit=len(orders))
    finally:
        reporting.cancel()


def waiting_for(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the current activity of the process that reported `records`, and its limit; empty if it exits."""
    here = f"importing what it needs, which may take {IMPORT_S:g} s"
    for record in records:
        match record:
            case {"k": "start", "id": str(key), "timeout_s": float(limit_s)}:
                here = f"{DOES.get(key, key)}, which may take {limit_s:.0f} s here"
            case {"k": "collected"} | {"k": "end"}:
                here = "between two layers"
            case {"k": "finish"}:
                here = ""
    return here


def read_story(name: str, directory: Path, end: ProcessEnd | None) -> RankStory:
    """Return what a process reported about its layers, and logged.

    Without an `end`, it was cut off; a process that ended by itself during a layer failed there.
    """
    passed: dict[str, float] = {}
    failed: dict[str, str] = {}
    stuck, is_ready = "", False
    for record in _records(directory):
        match record:
            case {"k": "collected"}:
                is_ready = True
            case {"k": "start", "id": str(key)}:
                stuck = key
            case {"k": "end", "id": str(key), "outcome": "passed", "duration_s": float(duration_s)}:
                passed[key], stuck = duration_s, ""
            case {"k": "end", "id": str(key), "reason": str(reason)}:
                failed[key], stuck = reason, ""
    if stuck and end is not None and not end.reason:
        died = f"it died of signal {end.signal}" if end.exit_code is None else f"it exited with {end.exit_code}"
        failed[stuck], stuck = died, ""
    log, stacks = (read_end(directory / name, MAX_LOG_BYTES).strip() for name in ("output.log", "stacks.txt"))
    return RankStory(name, passed, failed, stuck, is_ready, log, stacks)


def _records(directory: Path) -> list[dict[str, Any]]:
    return json_objects(read_end(directory / "report.jsonl", MAX_LOG_BYTES))


@contextmanager
def _held_port() -> Iterator[int]:
    """A TCP port for torch's store, which sets SO_REUSEADDR; no other process gets it before the rank opens it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
