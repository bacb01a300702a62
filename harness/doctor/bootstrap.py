"""`doctor --distributed N`: small processes try the layers of a bootstrap, and the remedies of the one that fails.

    ranks 0..N-1 (torch) ─┐
                          ├─ each supervised, each layer with its limit ──▶ stories ──▶ layers ──▶ findings
    a start of Ray ───────┘                                                      │
                              once more per remedy of a layer that broke  ◀──────┘

The processes are attempts as those of tests are: a layer that hangs in a C call is ended for certain, after the stacks
of its process have been taken. Once one rank has failed, the others wait for it in vain, and are ended soon,
without stacks.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from harness.bits.files import open_regular
from harness.doctor import layers
from harness.doctor.host import module_command
from harness.doctor.layers import RankStory, Verdict
from harness.doctor.rank_variables import Job
from harness.machine.fan_out import fan_out
from harness.machine.findings import Finding, Severity
from harness.machine.network.interfaces import is_name_asked_in_vain, read_network
from harness.process.child_env import probe_env
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisor
from harness.runner.report_file import ReportTail, read_report
from harness.runner.test_outcomes import TestOutcome

IMPORT_S = 90.0
"""Limit on importing torch or Ray, which a cold disk makes slow."""
WALK_S = 240.0
"""Limit of one process after its imports: more than all layers' limits together."""
GRACE_S = 0.5
LAST_WORD_S = 3.0
"""Time that the other ranks have left once one has failed, to report a reason of their own."""
PATIENCE_S = 10.0
"""Every so often it is said who is still waited for, and how long that may take."""
NAME_S = 1.0
"""Limit on a name server, after a hang: a slower one explains the hang."""
MASTER_ADDR = "127.0.0.1"
"""Default address of the store."""
MAX_LOG_BYTES = 1 << 18
JOB_STORE = "the job's store"
"""Name of the process that keeps it, beside rank 0."""
RAY_LOGS = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")


Try = Callable[[Mapping[str, str]], Awaitable[list[Verdict]]]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Parameters of the trial, and its means."""

    num_ranks: int
    backend: str
    """"gloo" or "nccl"; NCCL takes GPU n for rank n."""
    environ: Mapping[str, str]
    """Environment of this process, which a training started here would inherit."""
    supervisor: Supervisor
    directory: Path
    """Exists, is empty, on a short path; for the processes' files and TMPDIRs."""
    say: Callable[[str], None] = lambda text: None
    """Hears what is being tried."""


async def find_layer(bootstrap: Bootstrap) -> tuple[Finding, ...]:
    """A finding per layer, down to the first that not every rank has passed; that one with a remedy that was tried."""
    prober = _Prober(bootstrap)
    found = await fan_out(prober.findings, (prober.try_ray, prober.try_ranks), limit=2)
    return tuple(finding for findings in found for finding in findings)


async def find_layer_of_job(bootstrap: Bootstrap, job: Job) -> tuple[Finding, ...]:
    """The findings of rank 0 on all ranks of its launcher; of another rank, none if it has come to rank 0's store."""
    return tuple(verdict.finding() for verdict in await _Prober(bootstrap).try_job(job))


class _Prober:
    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._numbers, self._walks = count(), count()

    async def try_ray(self, environ: Mapping[str, str]) -> list[Verdict]:
        """One start of Ray, where it is installed."""
        if find_spec("ray") is None:
            return [Verdict(layers.RAY, Severity.FINE, "not installed, not tried")]
        return [layers.verdict_of_ray(*await self._stories({"Ray": ("--ray",)}, environ))]

    async def try_ranks(self, environ: Mapping[str, str]) -> list[Verdict]:
        """One walk of all ranks."""
        host = environ.get("MASTER_ADDR", MASTER_ADDR)
        with _held_port() as port:  # where the environment names no port
            address = f"{host}:{environ.get('MASTER_PORT') or port}"
            stories = await self._stories(self._ranks(address), environ)
        return layers.verdicts_of_ranks(stories, with_nccl=self._bootstrap.backend == "nccl", address=address)

    async def try_job(self, job: Job) -> list[Verdict]:
        """One walk of this process's rank; rank 0 also collects the reports of the others."""
        own, reports = f"rank {job.rank} on {socket.gethostname()}", self._bootstrap.directory / "reports"
        reports.mkdir()
        backend, world = self._bootstrap.backend, self._bootstrap.num_ranks
        shared = ("--world", str(world), "--backend", backend, "--address", job.address)
        commands: dict[str, tuple[str, ...]] = {own: ("--rank", str(job.rank), "--gpu", str(job.gpu), *shared)}
        if job.rank == 0:
            commands[JOB_STORE] = ("--collect", str(reports), *shared)
        stories = await self._stories(commands, self._bootstrap.environ)
        if job.rank and "store" in stories[0].passed:
            return []
        others = [path for rank in range(1, world) for path in reports.glob(f"rank {rank} on *")]
        ranks = [story for story in stories if story.name == own or story.failed]
        ranks += [replace(story_in(path, None), name=path.name) for path in others]
        return layers.verdicts_of_ranks(ranks, with_nccl=backend == "nccl", address=job.address, in_job=True)

    async def findings(self, attempt: Try) -> list[Finding]:
        """What one try finds; a broken layer is named at once, then the remedies for it are tried."""
        return [
            await self._with_remedy(verdict, attempt) if verdict.severity is Severity.BROKEN else verdict.finding()
            for verdict in await attempt(self._bootstrap.environ)
        ]

    async def _with_remedy(self, verdict: Verdict, attempt: Try) -> Finding:
        """The verdict with the first settings under which its layer is passed."""
        if verdict.is_hang and (unanswered := await self._name_asked_in_vain(verdict.layer)):
            verdict = layers.for_want_of_a_name(verdict, unanswered)
        say, name = self._bootstrap.say, verdict.layer.name
        say(f"{name}: {verdict.measured}")
        tried = [_seen_by_ranks(self._bootstrap.environ)]
        for settings in verdict.layer.remedies:
            environ = _with(settings, self._bootstrap.environ)
            of_other_backend = any(name.startswith("NCCL_") for name in settings) and self._bootstrap.backend != "nccl"
            if _seen_by_ranks(environ) in tried or of_other_backend:
                continue
            tried.append(_seen_by_ranks(environ))
            shown = "; ".join(f"unset {n}" if v is None else f"export {n}={v}" for n, v in settings.items())
            say(f"{name}: trying {shown}")
            if any(v.layer.name == name and v.severity is Severity.FINE for v in await attempt(environ)):
                return verdict.finding(settings, f"{shown}   # tried: it passes this layer")
        return verdict.finding()

    async def _name_asked_in_vain(self, layer: layers.Layer) -> str:
        """For what a name server is asked in `layer`, and does not answer; empty where it is not asked, or answers."""
        environ = self._bootstrap.environ
        if layer is layers.GLOO and "GLOO_SOCKET_IFNAME" not in environ:
            network = await read_network(limit_s=NAME_S)
            return "" if network.host_name in network.resolved else f"this host's name {network.host_name}"
        if layer is layers.STORE:
            host = environ.get("MASTER_ADDR", MASTER_ADDR)
            return f"the name of {host}" if await is_name_asked_in_vain(host, limit_s=NAME_S) else ""
        return ""

    def _ranks(self, address: str) -> dict[str, tuple[str, ...]]:
        """The arguments of each rank, by its name; the store is at `address`."""
        world = str(self._bootstrap.num_ranks)
        meeting = self._bootstrap.directory / f"m{next(self._walks)}"
        meeting.mkdir()
        shared = ("--world", world, "--backend", self._bootstrap.backend, "--address", address, "--meet", str(meeting))
        return {f"rank {n}": ("--rank", str(n), "--gpu", str(n), *shared) for n in range(self._bootstrap.num_ranks)}

    async def _stories(self, commands: Mapping[str, tuple[str, ...]], environ: Mapping[str, str]) -> list[RankStory]:
        """What processes that are to meet have told; `commands` are their arguments by their names."""
        loop = asyncio.get_running_loop()
        running: dict[str, Path] = {}
        limits: dict[str, asyncio.Timeout] = {}

        async def carry_out(name: str) -> RankStory:
            spec, end = self._spec(commands[name], environ), None
            running[name] = Path(spec.directory)
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as limits[name]:
                    end = await self._bootstrap.supervisor.run(spec)
            del running[name], limits[name]
            story = replace(story_in(Path(spec.directory), end), name=name, log=_log_of(spec))
            if story.failed or not story.is_ready or JOB_STORE in commands:
                for other in limits.values():
                    if other.when() is None:
                        other.reschedule(loop.time() + LAST_WORD_S)
            return story

        telling = asyncio.create_task(self._tell_of(running))
        try:
            return await fan_out(carry_out, commands, limit=len(commands))
        finally:
            telling.cancel()

    async def _tell_of(self, running: Mapping[str, Path]) -> None:
        """Say every PATIENCE_S seconds what is waited for: a machine may be slow enough to look like one that hangs."""
        for number in count(1):
            await asyncio.sleep(PATIENCE_S)
            waits: dict[str, list[str]] = {}
            for name, directory in running.items():
                waits.setdefault(waiting_for(ReportTail(directory / "report.jsonl").poll()), []).append(name)
            for what, names in waits.items():
                if not what:
                    continue
                self._bootstrap.say(f"{', '.join(names)}: not done after {number * PATIENCE_S:g} s: {what}")

    def _spec(self, arguments: tuple[str, ...], environ: Mapping[str, str]) -> ProcessSpec:
        number = next(self._numbers)
        directory, tmpdir = (self._bootstrap.directory / f"{kind}{number}" for kind in "pt")
        directory.mkdir()
        tmpdir.mkdir(mode=0o700)
        report = str(directory / "report.jsonl")
        marker = f"rlharness-probe-{self._bootstrap.directory.name}-{number}"
        return ProcessSpec(
            argv=module_command("harness.doctor.distributed_probe", "--report", report, *arguments),
            cwd=str(directory),  # not the user's: workers of Ray import from the directory that it is started in
            env=probe_env(environ, tmpdir=str(tmpdir), marker=marker),
            directory=str(directory),
            marker=marker,
            timeout_s=IMPORT_S + WALK_S,
            startup_timeout_s=IMPORT_S,
            grace_s=GRACE_S,
        )


def _seen_by_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    return {"MASTER_ADDR": MASTER_ADDR, **environ}


def _with(settings: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str]:
    changed = {name: value for name, value in settings.items() if value is not None}
    return {**{name: value for name, value in environ.items() if name not in settings}, **changed}


def waiting_for(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the current activity of the process that reported `records`, and its limit; empty if it exits."""
    here = f"importing what it needs, which may take {IMPORT_S:g} s"
    for record in records:
        match record:
            case {"k": "start", "id": str(key), "timeout_s": float(limit_s)}:
                here = f"{layers.DOES.get(key, key)}, which may take {limit_s:.0f} s here"
            case {"k": "collected"} | {"k": "end"}:
                here = "between two layers"
            case {"k": "finish"}:
                here = ""
    return here


def story_in(directory: Path, end: ProcessEnd | None) -> RankStory:
    """Return what the process with its files in `directory` reported about its layers.

    Without an `end`, it was cut off; a process that ended by itself during a layer failed there.
    """
    report = read_report(directory / "report.jsonl")
    layer_ends = report.ends.items()
    failed = {layer: told.reason for layer, told in layer_ends if told.outcome is not TestOutcome.PASSED}
    stuck = report.running[0] if report.running else ""
    if stuck and end is not None and not end.reason:
        how = f"it died of signal {end.signal}" if end.exit_code is None else f"it exited with {end.exit_code}"
        failed, stuck = {**failed, stuck: how}, ""
    return RankStory(
        name="",
        passed={layer: told.duration_s for layer, told in layer_ends if told.outcome is TestOutcome.PASSED},
        failed=failed,
        stuck=stuck,
        is_ready=report.collected,
        stacks=_end_of(directory / "stacks.txt"),
    )


def _log_of(spec: ProcessSpec) -> str:
    tmpdir = Path(spec.env["TMPDIR"])
    logs = [path for name in RAY_LOGS for path in sorted(tmpdir.glob(f"ray/session_2*/logs/{name}"))]
    return "\n".join(text for path in (Path(spec.directory) / "output.log", *logs) if (text := _end_of(path)))


def _end_of(path: Path) -> str:
    try:
        with open_regular(path, follows_links=True) as file:  # Ray's own logs are links now and then
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def _held_port() -> Iterator[int]:
    """A TCP port for torch's store, which sets SO_REUSEADDR; nobody else is given it, though Ray starts meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
