"""`doctor --distributed N`: small processes try the layers of a bootstrap, and the remedies of the one that fails.

    ranks 0..N-1 (torch) ─── each supervised, each layer with its limit ──▶ stories ──▶ layers ──▶ findings
                                                                               │
                              once more per remedy of a layer that broke  ◀────┘

The processes are supervised as tests are: a layer that hangs in a C call is ended for certain, after the stacks of its
process have been taken. Once one rank has failed, the others wait for it in vain, and are ended soon, without stacks.
"""

import asyncio
import json
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from harness.bits.files import read_end
from harness.doctor.children import Children, module_command
from harness.doctor.environment import Job
from harness.doctor.layers import DOES, REMEDIES, RankStory, classify_ranks
from harness.machine.fan_out import fan_out
from harness.machine.findings import BROKEN, FINE, MachineFinding
from harness.machine.network.preflight import preflight
from harness.process.clock import SystemClock
from harness.process.program_output import json_objects
from harness.process.supervisor_client import ProcessEnd

IMPORT_S = 90.0
"""Limit on importing torch, which a cold disk makes slow."""
WALK_S = 240.0
"""Limit of one process after its imports: more than all layers' limits together."""
LAST_WORD_S = 3.0
"""Time that the other ranks have left once one has failed, to report a reason of their own."""
PATIENCE_S = 10.0
"""Every so often it is said who is still waited for, and how long that may take."""
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
    """Hears what is being tried."""


async def find_layer(bootstrap: Bootstrap) -> tuple[MachineFinding, ...]:
    """A finding per layer, down to the first that not every rank has passed; that one with a remedy that was tried.

    Findings of the network follow: a name server that is silent, for one, looks like a layer that hangs.
    """
    found = [
        await _mend(bootstrap, finding) if finding.severity is BROKEN else finding
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


async def _mend(bootstrap: Bootstrap, finding: MachineFinding) -> MachineFinding:
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
        mended = replace(finding, values={**finding.values, "exports": exports, "unsets": unsets})
        bootstrap.say(f"{finding.check}: trying {mended.fix}")
        if any(each.check == finding.check and each.severity is FINE for each in await _try_ranks(bootstrap, environ)):
            remedy = f"{mended.fix}   # tried: it passes this layer"
            return replace(mended, values={**mended.values, "remedy": remedy})
    return finding


def _seen_by_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    return {"MASTER_ADDR": MASTER_ADDR, **environ}


# ------------------------------------------------------------------------------------------------------------ processes


async def _run(
    bootstrap: Bootstrap, orders: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]
) -> list[RankStory]:
    """What processes that are to meet have told; `orders` are their arguments by their names."""
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
    """A TCP port for torch's store, which sets SO_REUSEADDR; nobody else is given it, before the rank opens it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
