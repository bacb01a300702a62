"""`doctor --distributed N`: ranks try the layers of a bootstrap together, and the remedies of the one that fails.

    ranks 0..N-1 (torch) ─── each layer with its limit ──▶ answers ──▶ findings
                                                              │
                 once more per remedy of a layer that broke ◀─┘

    store ─▶ Gloo ─▶ NCCL bootstrap ─▶ NCCL transport ─▶ first collective

Each layer chooses its own path through the network, so a remedy for one does not help another. The first layer that not
every rank has passed is the one to fix. A rank that hangs in a C call is ended for certain, after its stacks have been
taken. Once one rank has failed, the others wait for it in vain, and are ended soon, without stacks. NCCL starts in one
call; its log shows how far it came.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.doctor import probe
from harness.doctor.host import Probes
from harness.machine.findings import BROKEN, FINE, MachineCode, MachineFinding
from harness.machine.network.preflight import preflight
from harness.process.children import Answer
from harness.process.clock import SystemClock

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
class Layer:
    """One step that all ranks take together."""

    function: Callable[[probe.Rank], None]
    names: tuple[str, ...]
    """Names in the report; empty for what is no layer."""
    limit_s: float
    """Healthy layers take less than 1 s (NCCL) and 0.1 s (the others); NCCL's on eight cold GPUs many times that."""
    does: str


LAYERS: Mapping[LayerCode, Layer] = {
    LayerCode.START: Layer(probe.start, (), 90.0, "importing torch"),  # which a cold disk makes slow
    # the store comes up slowly, and comes up, where a name server does not answer
    LayerCode.STORE: Layer(probe.meet, ("store",), 13.0, "meeting at the store of rank 0"),
    LayerCode.GLOO: Layer(probe.connect_gloo, ("Gloo",), 5.0, "connecting every pair of ranks through Gloo"),
    LayerCode.BOOTSTRAP: Layer(
        probe.connect_nccl, ("NCCL bootstrap", "NCCL transport"), 60.0, "coming up through NCCL"
    ),
    LayerCode.COLLECTIVE: Layer(probe.reduce, ("first collective",), 15.0, "adding up a megabyte over all ranks"),
}
LAST_WORD_S = 3.0
"""Time that the other ranks have left once one has failed, to report a reason of their own."""
MASTER_ADDR = "127.0.0.1"
"""Default address of the store."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Parameters of the trial, and its means."""

    num_ranks: int
    backend: str
    """"gloo" or "nccl"; NCCL takes GPU n for rank n."""
    environ: Mapping[str, str]
    """Environment of this process, which a training started here would inherit."""
    probes: Probes
    say: Callable[[str], None] = lambda text: None
    """Called with each line of progress."""


def find_layer(bootstrap: Bootstrap) -> tuple[MachineFinding, ...]:
    """A finding per layer, down to the first that not every rank has passed; that one with a remedy that was tried.

    Findings of the network follow: a name server that is silent, for one, looks like a layer that hangs.
    """
    found = [
        _with_remedy(bootstrap, finding) if finding.severity is BROKEN else finding
        for finding in try_ranks(bootstrap, bootstrap.environ)
    ]
    return (*found, *asyncio.run(preflight(bootstrap.environ, SystemClock())).findings)


def try_ranks(bootstrap: Bootstrap, environ: Mapping[str, str]) -> Iterator[MachineFinding]:
    """Yield the layers in order up to the first that not every rank has passed."""
    clock, names = SystemClock(), [f"rank {number}" for number in range(bootstrap.num_ranks)]
    with _held_port() as port:  # where the environment names no port
        address = f"{environ.get('MASTER_ADDR', MASTER_ADDR)}:{environ.get('MASTER_PORT') or port}"
        ranks = {name: probe.Rank(number, len(names), bootstrap.backend, address) for number, name in enumerate(names)}
        children = bootstrap.probes.start(names, environ)
        logs = dict.fromkeys(names, "")
        try:
            for code, layer in LAYERS.items():
                if code is LayerCode.BOOTSTRAP and bootstrap.backend != "nccl":
                    continue
                bootstrap.say(f"{layer.does}, which may take {layer.limit_s:g} s")
                for name, rank in ranks.items():
                    children.send(name, layer.function, rank)
                began_s = clock.monotonic_s()
                answers = children.gather(names, layer.limit_s, LAST_WORD_S)
                measured = f"{len(names)} ranks in {clock.monotonic_s() - began_s:.2f} s"
                logs = {name: logs[name] + children.new_output(name) for name in names}
                if any(answer.kind != "ok" for answer in answers.values()):
                    hung = [name for name, answer in answers.items() if answer.kind == "late"]
                    stacks = children.stacks(hung if len(hung) == len(_behind(answers)) else [])
                    yield classify_layer(code, answers, logs, stacks, address=address)
                    return
                yield from (LayerCode.PASSED(layer=name, measured=measured) for name in layer.names)
        finally:
            children.end()


@contextmanager
def _held_port() -> Iterator[int]:
    """A TCP port for torch's store, which sets SO_REUSEADDR; no other process gets it before the rank opens it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def _behind(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    return {name: answer for name, answer in answers.items() if answer.kind != "ok"}


def classify_layer(
    code: LayerCode,
    answers: Mapping[str, Answer],
    logs: Mapping[str, str],
    stacks: Mapping[str, str],
    *,
    address: str = "",
) -> MachineFinding:
    """Return the finding of a layer that not every rank has passed; `address` is the store's, HOST:PORT."""
    behind = _behind(answers)
    does = LAYERS[code].does + (f" at {address}" if address and code is LayerCode.STORE else "")
    hung = [name for name, answer in behind.items() if answer.kind == "late"]
    failed: dict[str, list[str]] = {}
    for name, answer in behind.items():
        if answer.kind != "late":
            error = f"it {answer.value}" if answer.kind == "lost" else answer.value.partition("\n")[0]
            failed.setdefault(error, []).append(name)
    parts = [f"{', '.join(names)} failed while {does}: {error}" for error, names in failed.items()]
    if hung:
        parts.append(f"{', '.join(hung)} still waited there" if failed else f"{', '.join(hung)} hung while {does}")
    details: list[str] = []
    for name in behind:
        details += [f"{name}: {line}" for line in telling_lines(logs.get(name, ""))]
        details += [f"{name} stood in {frame}" for frame in innermost(stacks.get(name, ""))]
    log = "\n".join(logs.values())
    if (code is LayerCode.BOOTSTRAP and BOOTSTRAPPED.search(log)) or (
        code is LayerCode.COLLECTIVE and "NCCL INFO" in log and not TRANSPORTED.search(log)
    ):
        code = LayerCode.TRANSPORT
    measured = "; ".join(parts) + (f" ({len(answers)} ranks)" if len(answers) > 1 else "")
    return code(measured=measured, details=tuple(details))


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


def _with_remedy(bootstrap: Bootstrap, finding: MachineFinding) -> MachineFinding:
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
        if any(each.check == finding.check and each.severity is FINE for each in try_ranks(bootstrap, environ)):
            remedy = f"{changed.fix}   # tried: it passes this layer"
            return replace(changed, values={**changed.values, "remedy": remedy})
    return finding


def _seen_by_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    return {"MASTER_ADDR": MASTER_ADDR, **environ}
