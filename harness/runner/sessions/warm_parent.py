"""The runner's side of the warm session (`warm_session`): starts it, asks it for forks, and ends it.

It is an aid, never a condition: where it cannot be started, or a test file cannot be forked from it, an interpreter is
started for the file, and `notes` says why. It lives for one run, so what it has imported is of this run.
"""

import asyncio
import json
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.bits.files import read_text
from harness.bits.redaction import redact_text
from harness.bits.text import one_line
from harness.process.child_env import ATTEMPT_MARKER, child_env
from harness.process.daemon_thread import in_daemon_thread
from harness.process.supervisor import rescue
from harness.process.supervisor.fork_hazards import THREADS
from harness.process.supervisor.fork_server import Forked, ask_for_fork, end_process
from harness.runner.isolation_notes import IsolationCode, IsolationNote, NotForked
from harness.runner.options import RunOptions
from harness.runner.selections import split_selections
from harness.runner.sessions.pytest_command import pytest_command

MARKER_ROOM = 64
"""Characters of the marker's value in the environment of the session, which its forks overwrite."""
FORK_S = 20.0
IMPORT_S = 120.0
CLOSE_S = 2.0
RESCUE_ROUNDS = 20
MAX_STATE_BYTES = 1 << 17
MIN_FILES = 2
"""A module is imported for all once so many files have imported it."""
Why = tuple[NotForked, str]
"""Reason why a file is not forked, and the value that belongs to it."""


@dataclass(slots=True)
class WarmState:
    """What the session has said of itself."""

    hazards: tuple[Why, ...] = ()
    """What a fork would share and must not."""
    reads: dict[str, str] = field(default_factory=dict)
    """Variables of the environment that were read, with the module that read each first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Modules that could not be imported, or start threads, with the reason."""


class WarmParent:
    """One warm session. `process.Parent` for the supervisors of a run; closed with it."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path, marker: str) -> None:
        """Start it, without waiting. Raises OSError where no process can be had.

        `command` is pytest's, and gets the number of the socket; what it prints goes to the file `log`.
        """
        self.env = dict(env)
        self._command, self._cwd, self._log = tuple(command), cwd, log
        self._marker = marker.ljust(MARKER_ROOM, "_")
        self._state: WarmState | None = None
        self._lock = asyncio.Lock()
        self._asked: dict[str, None] = {}
        """Modules whose import was asked for, in order."""
        self._harmful: set[str] = set()
        """Packages that are not imported for all files, since what they do at import must not be shared."""
        self._counts: Counter[str] = Counter()
        self._fresh: Counter[Why] = Counter()
        """Number of processes with an interpreter of their own, by reason."""
        self._why_lost: Why | None = None
        self.generation = 0
        """Number of times that it has imported modules."""
        self._start()

    def _start(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._command, f"--rlharness-serve={its.fileno()}"],
                cwd=self._cwd,
                env={**self.env, ATTEMPT_MARKER: self._marker},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        self._socket = ours

    @property
    def pid(self) -> int:
        """Its number; 0 once it has ended."""
        return 0 if self._process.poll() is not None else self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether files can be forked from it."""
        return self._state is not None and not self._why_lost and not self._state.hazards

    @property
    def refused(self) -> Mapping[str, str]:
        """Modules of the latest `preload` that could not be imported, with the type of the exception."""
        return self._state.refused if self._state is not None else {}

    @property
    def notes(self) -> tuple[IsolationNote, ...]:
        """Why files had an interpreter of their own; nothing where none had."""
        found = self._fresh.items()
        if not found and (why := self._why_fresh(self.env)):
            found = {why: 0}.items()
        code = IsolationCode.NOT_FORKED
        return tuple(
            IsolationNote(code, reason=reason, detail=detail, num_processes=num_processes)
            for (reason, detail), num_processes in found
        )

    async def wait_ready(self, limit_s: float) -> bool:
        """Wait until its conftest files are imported; False where it cannot serve."""
        async with self._lock:
            try:
                self._state = _state(await self._receive(limit_s))
            except OSError as error:
                self._lose(NotForked.NOT_LOADED, error)
        return self.is_ready

    async def preload(self, modules: Iterable[str]) -> None:
        """Import modules for all the files to come.

        Where a package does at import what must not be shared, the session starts again without it.
        """
        wanted = [name for name in modules if name not in self._asked and not self._is_harmful(name)]
        if not wanted or not self.is_ready:
            return
        self._asked.update(dict.fromkeys(wanted))
        async with self._lock:
            try:
                await self._import(wanted)
                while found := self._harmful_packages():
                    self._harmful |= found
                    self._end()
                    self._start()
                    self._state = _state(await self._receive(IMPORT_S))
                    if self.is_ready:
                        await self._import([name for name in self._asked if not self._is_harmful(name)])
            except OSError as error:
                self._lose(NotForked.NOT_IMPORTED, error)

    async def _import(self, modules: list[str]) -> None:
        self.generation += 1
        self._socket.settimeout(FORK_S)
        self._socket.send(json.dumps({"import": modules}).encode())
        self._state = _state(await self._receive(IMPORT_S))

    def _is_harmful(self, module: str) -> bool:
        return module.partition(".")[0] in self._harmful

    def _harmful_packages(self) -> set[str]:
        """Packages, imported for all files, that start threads or read what differs between files."""
        assert self._state is not None
        threading = {name for name, why in self._state.refused.items() if why == THREADS}
        packages = {name.partition(".")[0] for name in self._asked}
        return (
            {name.partition(".")[0] for name in (*threading, *self._state.reads.values())} & packages
        ) - self._harmful

    async def learn(self, modules: Iterable[str]) -> None:
        """Take note of what one file has imported itself, and preload what several do."""
        self._counts.update(modules)
        await self.preload([name for name, count in self._counts.items() if count >= MIN_FILES])

    def can_fork(self, env: Mapping[str, str]) -> bool:
        """Whether a child with this environment would be as one that had been started with it."""
        why = self._why_fresh(env)
        if why is not None:
            self._fresh[why] += 1
        return why is None

    async def fork(self, stderr: int) -> Forked | None:
        """Fork a supervisor, a child of this process, whose complaints go to the file `stderr`; None where lost."""
        async with self._lock:
            if not self.is_ready:
                return None
            try:
                self._socket.settimeout(FORK_S)
                return ask_for_fork(self._socket, stderr)
            except (ConnectionError, TimeoutError) as error:
                self._lose(NotForked.LOST, error)
                return None
            except BlockingIOError as error:  # the fork was killed before it could answer
                self._fresh[NotForked.NO_FORK, error.strerror or str(error)] += 1
                return None

    def close(self) -> None:
        """End it, and whatever processes it has started."""
        self._end(CLOSE_S if self.is_ready else 0)
        for _ in range(RESCUE_ROUNDS):
            if not rescue.kill_bearing(self._marker):
                return

    def _end(self, patience_s: float = 0) -> None:
        self._socket.close()
        end_process(self._process, patience_s)

    def _why_fresh(self, env: Mapping[str, str]) -> Why | None:
        if self._why_lost is not None:
            return self._why_lost
        if self._state is None:
            return NotForked.NOT_READY, ""
        if self._state.hazards:
            return self._state.hazards[0]
        for name, reader in self._state.reads.items():
            if env.get(name) != self.env.get(name):
                return NotForked.READS, f"{name} {reader}"
        return None

    def _lose(self, reason: NotForked, error: OSError) -> None:
        self._why_lost = self._why_lost or (reason, str(error))
        end_process(self._process)

    async def _receive(self, limit_s: float) -> bytes:
        self._socket.settimeout(limit_s)
        text = await in_daemon_thread(lambda: self._socket.recv(MAX_STATE_BYTES), limit_s=limit_s + 1)
        if not text:
            raise ConnectionResetError(f"it ended: {self._last_line()}")
        return text

    def _last_line(self) -> str:
        """The last line that it has printed."""
        with suppress(OSError):
            lines = read_text(self._log, errors="replace").split("\n")
            return one_line(
                redact_text(next((line for line in reversed(lines) if line.strip()), "it printed nothing")), 200
            )
        return "its output cannot be read"


def start_warm_session(
    options: RunOptions, run_id: str, scratch: Path, *, master_port: int, has_gpus: bool
) -> WarmParent | None:
    """Start the warm session of a run, without waiting; None where every file is to have an interpreter."""
    if options.isolate == "interpreter":
        return None
    tmpdir, marker = scratch / "w", f"{run_id}-warm"
    tmpdir.mkdir(mode=0o700)
    invocation = options.invocation
    paths = [each.path for each in split_selections(options.paths, invocation.cwd)]
    plugins = ("harness.plugin", "harness.runner.sessions.own_coverage", "harness.runner.sessions.warm_session")
    loaded = (arg for name in plugins for arg in ("-p", name))
    return WarmParent(
        (*pytest_command(options), *loaded, *invocation.trailing, *paths),
        invocation.cwd,
        child_env(
            invocation.environ,
            gpus=None if has_gpus else (),
            tmpdir=str(tmpdir),
            marker=marker,
            master_port=master_port,
        ),
        scratch / "warm_session.log",
        marker,
    )


def _state(text: bytes) -> WarmState:
    found = json.loads(text)
    return WarmState(
        tuple((NotForked(code), detail) for code, detail in found["hazards"]), found["reads"], found["refused"]
    )
