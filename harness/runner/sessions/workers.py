"""The workers of a run with `--isolate worker`: processes that take one test file after the other.

    unit on its lease ─▶ a worker that has these GPUs and is idle? ─▶ it gets the file
                                                         else ─▶ a new one, supervised as any attempt
    the worker's process ends ─▶ the file that it ran has this end; its other files go to other workers
    a lease overlaps the GPUs of an idle worker ─▶ that one ends first

`Workers` carries out the attempts of units, as `Supervisors` does in other modes.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Protocol

from harness.bits.errors import ReportError
from harness.bits.files import MALFORMED
from harness.process.child_env import (
    ATTEMPT_MARKER,
    CUDA_VISIBLE_DEVICES,
    VARYING,
    XDIST,
)
from harness.process.new_directory import make_new_directory
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner.isolation_notes import IsolationCode, IsolationNote
from harness.runner.options import RunOptions
from harness.runner.report_file import ReportTail, read_report
from harness.runner.selections import split_selections
from harness.runner.sessions.plugin_names import FOR_TESTS, ODD_NAMES, OWN_COVERAGE, PARTS, WORKER
from harness.runner.sessions.pytest_command import pytest_command
from harness.runner.sessions.worker_failure import ending, worker_failure
from harness.runner.units import WorkerFailure

CLOSE_S = 30.0
"""Seconds in which session-scoped fixtures of a worker may end."""
OF_FILE = ("MASTER_PORT", "COVERAGE_FILE")
"""Variables that a worker gets anew with each file."""
MAX_ANSWER_BYTES = 1 << 22
CHANGES = {
    "environment": IsolationCode.CHANGED_ENVIRONMENT,
    "cwd": IsolationCode.CHANGED_CWD,
    "process": IsolationCode.LEFT_PROCESS,
    "thread": IsolationCode.LEFT_THREAD,
}
"""What a file may leave to those after it, by the word of the worker."""

Terminating = Callable[[str], None]


class Attempts(Protocol):
    """Carries out attempts: `Supervisors` outside tests."""

    async def run(self, spec: ProcessSpec, on_terminating: Terminating = ...) -> ProcessEnd:
        """Carry one out to its proven end."""

    def cancel(self, marker: str) -> None:
        """End one in order."""

    def kill(self, marker: str) -> None:
        """End one at once."""

    def pid_of(self, marker: str) -> int:
        """Return the process below which those of an attempt are; 0 while it has none."""


@dataclass(eq=False)
class _Worker:
    """One worker, from the start of its process to its proven end."""

    name: str
    spec: ProcessSpec
    gpus: frozenset[str]
    ended: "asyncio.Task[ProcessEnd]" = field(init=False)
    orders: asyncio.StreamWriter | None = None
    answers: asyncio.StreamReader | None = None
    is_busy: bool = True
    file_marker: str = ""
    """Marker of the attempt that it carries out."""
    on_terminating: Terminating = lambda reason: None

    def fits(self, env: Mapping[str, str]) -> bool:
        """Return whether it has the GPUs and the variables of this environment."""
        return self.gpus == _gpus_of(env) and _shared(self.spec.env) == _shared(env)

    def hear_terminating(self, reason: str) -> None:
        """Pass on to the file of the moment that the process tree begins to be ended."""
        self.on_terminating(reason)


class Workers:
    """Carries out attempts at test files, each in a worker that has the GPUs of its lease.

    A spec's `session` and `argv` are those of the file; `argv` here is the command of a worker.
    """

    def __init__(self, attempts: Attempts, run_id: str, directory: Path, scratch: Path, argv: tuple[str, ...]) -> None:
        self._attempts = attempts
        self._run_id = run_id
        self._directory = directory
        self._scratch = scratch
        self._argv = argv
        self._workers: list[_Worker] = []
        self._num_workers = 0
        self.notes: list[str] = []
        self.failures: list[WorkerFailure] = []
        """Workers that failed after their last file."""
        self.isolation: list[IsolationNote] = []
        """Changes that files left to those after them."""

    async def run(self, spec: ProcessSpec, on_terminating: Terminating = lambda reason: None) -> ProcessEnd:
        """Carry out an attempt; its end is that of its file, or of the worker where that ended first."""
        began_s = asyncio.get_running_loop().time()
        worker = await self._take(spec, on_terminating)
        try:
            answer = await self._ask(worker, spec)
            if answer is None:
                end = await self._end_of(worker, spec)
                self._bring_stacks(worker, spec)
                return replace(end, duration_s=asyncio.get_running_loop().time() - began_s)
            for code, detail in answer["changes"]:
                path = spec.session["args"][0] if spec.session else ""
                self.isolation.append(IsolationNote(CHANGES[code], path, detail=detail))
            duration_s = asyncio.get_running_loop().time() - began_s
            return ProcessEnd(int(answer["exit"]), None, "", (), (), duration_s)
        except asyncio.CancelledError:
            self._attempts.kill(worker.spec.marker)
            await asyncio.wait([worker.ended])
            raise
        finally:
            worker.file_marker, worker.on_terminating, worker.is_busy = "", lambda reason: None, False

    def cancel(self, marker: str) -> None:
        """End the worker that carries out an attempt in order."""
        for worker in self._workers:
            if worker.file_marker == marker:
                self._attempts.cancel(worker.spec.marker)

    def kill(self, marker: str) -> None:
        """End the worker that carries out an attempt at once."""
        for worker in self._workers:
            if worker.file_marker == marker:
                self._attempts.kill(worker.spec.marker)

    def pid_of(self, marker: str) -> int:
        """Return the supervisor of the worker that carries out an attempt; 0 for none."""
        markers = (worker.spec.marker for worker in self._workers if worker.file_marker == marker)
        return next(map(self._attempts.pid_of, markers), 0)

    def has(self, env: Mapping[str, str]) -> bool:
        """Return whether a living worker has this environment, and so holds exactly the GPUs that it shows."""
        return any(worker.fits(env) for worker in self._workers)

    async def make_room(self, env: Mapping[str, str]) -> None:
        """End idle workers that hold a GPU that this environment shows, and do not fit it."""
        gpus = _gpus_of(env)
        for worker in [each for each in self._workers if not each.is_busy and each.gpus & gpus]:
            if not worker.fits(env):
                await self._close(worker)

    async def close(self) -> None:
        """Have every worker finish its session, and wait for its end."""
        await asyncio.gather(*(self._close(worker) for worker in list(self._workers)))

    async def _take(self, spec: ProcessSpec, on_terminating: Terminating) -> _Worker:
        gpus = _gpus_of(spec.env)
        for worker in self._workers:
            if not worker.is_busy and worker.fits(spec.env) and not worker.ended.done():
                worker.is_busy, worker.file_marker, worker.on_terminating = True, spec.marker, on_terminating
                return worker
        return await self._start(spec, gpus, on_terminating)

    async def _start(self, spec: ProcessSpec, gpus: frozenset[str], on_terminating: Terminating) -> _Worker:
        """Start a worker, and wait until it has connected or ended."""
        name = f"w{self._num_workers}"
        self._num_workers += 1
        directory, tmpdir = self._directory / name, self._scratch / name
        self.notes += [*make_new_directory(directory), *make_new_directory(tmpdir, mode=0o700)]
        tail = ReportTail(directory / "report.jsonl")
        tail.file.make()  # before there are tests, as for any attempt
        tail.close()
        worker = self._make(spec, gpus, name)
        worker.file_marker, worker.on_terminating = spec.marker, on_terminating
        address, marker = _address(worker.spec), worker.spec.marker
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connected.done():
                writer.close()
            else:
                connected.set_result((reader, writer))

        server = await asyncio.start_unix_server(on_connected, address, limit=MAX_ANSWER_BYTES)
        self._workers.append(worker)
        worker.ended = asyncio.create_task(self._attempts.run(worker.spec, worker.hear_terminating))
        worker.ended.add_done_callback(lambda task: self._forget(worker))
        try:
            awaited: list[asyncio.Future[Any]] = [worker.ended, connected]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if connected.done():
                worker.answers, worker.orders = connected.result()
                await worker.answers.readline()
        except asyncio.CancelledError:
            self._attempts.kill(marker)
            await asyncio.wait([worker.ended])
            raise
        finally:
            server.close()
            with suppress(OSError):
                os.unlink(address)
        return worker

    def _make(self, spec: ProcessSpec, gpus: frozenset[str], name: str) -> _Worker:
        """Return a worker for files with the environment of `spec`, not yet started."""
        directory, tmpdir, marker = self._directory / name, self._scratch / name, f"{self._run_id}-{name}"
        own = {
            "rlharness_worker": str(self._scratch / f"{name}.sock"),
            "rlharness_worker_report": str(directory / "report.jsonl"),
            "basetemp": str(tmpdir / "pytest"),
        }
        given = [f"--{key.replace('_', '-')}={value}" for key, value in own.items()]
        plugins = [*FOR_TESTS, PARTS, ODD_NAMES, WORKER]
        own_env = {"TMPDIR": str(tmpdir), ATTEMPT_MARKER: marker, XDIST[0]: f"g{name}"}
        of_worker = replace(
            spec,
            argv=(*self._argv, *(word for name in plugins for word in ("-p", name)), *given),
            session={"args": [], "options": own, "plugins": plugins},
            directory=str(directory),
            marker=marker,
            env={**spec.env, **own_env},
            timeout_s=inf,
        )
        return _Worker(name, of_worker, gpus)

    def _forget(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        if not worker.file_marker and not worker.ended.cancelled() and worker.ended.exception() is None:
            end = worker.ended.result()
            if end.exit_code != 0 and not end.reason:
                self.failures.append(worker_failure(worker.name, worker.spec.directory, ending(end)))
        if worker.orders is not None:
            worker.orders.close()
        if complaint := remove_tree(worker.spec.env["TMPDIR"]):
            self.notes.append(complaint)

    async def _ask(self, worker: _Worker, spec: ProcessSpec) -> dict[str, Any] | None:
        """Give a file to a worker; its answer, or None where it has ended."""
        if worker.orders is None or worker.answers is None or spec.session is None:
            return None
        options = {key: value for key, value in spec.session["options"].items() if key != "basetemp"}
        order = {
            "args": spec.session["args"],
            "options": {"rlharness_part": None, **options},
            "report": options["rlharness_report"],
            "log": str(Path(spec.directory, "output.log")),
            "env": {name: spec.env[name] for name in OF_FILE if name in spec.env},
            "timeout_s": spec.timeout_s,
            "startup_timeout_s": spec.startup_timeout_s,
        }
        try:
            worker.orders.write(json.dumps(order).encode() + b"\n")
            await worker.orders.drain()
            line = await worker.answers.readline()
            answer = json.loads(line) if line else None
        except (OSError, *MALFORMED):  # it is gone, or a test has written to its socket
            answer = None
        return answer if isinstance(answer, dict) else None

    async def _end_of(self, worker: _Worker, spec: ProcessSpec) -> ProcessEnd:
        """How a worker without an answer has ended: as its file, where that is known to have been the last thing."""
        done, _ = await asyncio.wait([worker.ended], timeout=None if worker.orders is None else CLOSE_S)
        if not done:  # a test has closed its socket, or written to it
            self._attempts.cancel(worker.spec.marker)
            await asyncio.wait([worker.ended])
        end = worker.ended.result()
        with suppress(ReportError, OSError):
            finished = read_report(Path(spec.directory, "report.jsonl")).finished_exit
            if finished is not None and (not done or (end.signal is None and not end.reason)):
                return replace(end, exit_code=finished, signal=None, reason="")
        return end

    def _bring_stacks(self, worker: _Worker, spec: ProcessSpec) -> None:
        """Put what the supervisor has written of the worker's end beside the output of the file."""
        for name in ("stacks.txt", "supervisor.log"):
            with suppress(OSError):
                shutil.copyfile(Path(worker.spec.directory, name), Path(spec.directory, name))
        own = Path(worker.spec.directory, "output.log")
        if not Path(spec.directory, "output.log").exists():  # it ended before it had the file
            with suppress(OSError):
                shutil.copyfile(own, Path(spec.directory, "output.log"))

    async def _close(self, worker: _Worker) -> None:
        """Have an idle worker finish its session."""
        worker.is_busy = True
        if worker.orders is not None:
            worker.orders.close()
        done, _ = await asyncio.wait([worker.ended], timeout=CLOSE_S)
        if not done:
            self._attempts.cancel(worker.spec.marker)
            await asyncio.wait([worker.ended])
            why = f"it did not end within {CLOSE_S:g} s of its last file"
            self.failures.append(worker_failure(worker.name, worker.spec.directory, why))


def _gpus_of(env: Mapping[str, str]) -> frozenset[str]:
    """The GPUs that an environment shows, as it names them; none for a unit without GPUs."""
    return frozenset(filter(None, env.get(CUDA_VISIBLE_DEVICES, "").split(",")))


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are the same for all files of a worker."""
    return {name: value for name, value in env.items() if name not in VARYING}


def worker_command(options: RunOptions, pytest_args: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a worker, to which its own options are added: it has the conftest files of the suite."""
    invocation = options.invocation
    paths = [each.path for each in split_selections(options.paths, invocation.cwd)]
    plugins = ("-p", "harness.plugin", "-p", OWN_COVERAGE)
    return (*pytest_command(options), *plugins, *invocation.trailing, *pytest_args, *paths)


def _address(spec: ProcessSpec) -> str:
    """The socket from which a worker takes its files."""
    assert spec.session is not None
    return str(spec.session["options"]["rlharness_worker"])
