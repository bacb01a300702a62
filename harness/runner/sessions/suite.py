"""The runner's side of the one session of a run (`collected_session`): starts it, follows what it collects, asks it for
forks, has it hear what became of them, and lets it finish.

Where a file ends the session at its import, stalls or poisons it, its standby goes on without that file; where there is
none, as at a conftest file that pytest imports before all, the session starts again. So collection ends, whatever the
suite does. A session that is lost later costs no outcome: files get an interpreter of their own.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.bits.errors import CollectionError, UsageError
from harness.bits.files import open_regular, read_text
from harness.bits.redaction import redact_text
from harness.bits.text import one_line
from harness.process.child_env import child_env
from harness.process.clock import SystemClock
from harness.process.exhaustion import MAKE_ROOM, shortage_at
from harness.process.growing_file import GrowingFile, GrowingLines
from harness.process.program_output import json_objects, signal_name
from harness.process.supervisor import process_tree, rescue, syscalls
from harness.process.supervisor.fork_server import Forked, ask_for_fork
from harness.process.supervisor.stacks import dump_stacks
from harness.process.supervisor_client import find_py_spy
from harness.runner.need import Need
from harness.runner.options import RunOptions
from harness.runner.report_file import ListedTest
from harness.runner.sessions.pytest_command import OWN_COVERAGE, SESSION, XDIST, pytest_command
from harness.runner.units import IsolationCode, IsolationNote, NotForked

MARKER_ROOM = 64
"""Characters of the marker's value in the environment of the session, which its forks overwrite."""
START_S, FORK_S, REPLAY_S, ROUND_S = 30.0, 20.0, 600.0, 0.02
RESCUE_ROUNDS = 20
MAX_ANSWER_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 1 << 16
USAGE = 4
UNWRITABLE = "the list of test files cannot be written"
"""As in the session."""
ASK_DOCTOR = "let rlharness doctor check the disks and the limits of this machine"
NO_NEED = Need()
Why = tuple[NotForked, str]
"""Reason why a file is not forked, and the value that belongs to it."""


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """The tests that pytest selected in one file, and what they need."""

    need: Need = NO_NEED
    asks: Mapping[str, Need] = field(default_factory=dict)
    """Need of each test, by its name in the file, whatever its parameters."""
    tests: tuple[ListedTest, ...] | None = None
    """Every selected test in order; None for a file that is not collected."""
    num_deselected: int = 0
    """Tests that pytest's options or a hook have left out."""
    error: str = ""
    """Why it cannot be run, the whole text; empty where it can."""
    timed_out: bool = False
    """Whether its import exceeded its limit."""
    is_late: bool = False
    """Whether each of its processes collects it itself, since its import must not be shared."""

    @property
    def is_deselected(self) -> bool:
        """Whether pytest's options have left none of its tests."""
        return not self.tests and self.num_deselected > 0


@dataclass(slots=True)
class _Found:
    """What sessions have written so far."""

    files: dict[str, CollectedFile] = field(default_factory=dict)
    facts: dict[str, Any] | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    """Why files are left out of the session, by absolute path."""
    errors: dict[str, str] = field(default_factory=dict)
    """Texts on conftest files and files that broke, by absolute path, and on directories, by node id."""
    skipped: dict[str, str] = field(default_factory=dict)
    late: dict[str, CollectedFile] = field(default_factory=dict)
    """Files that poisoned, by absolute path."""
    modules: Sequence[str] = ()
    """What the last of them has imported."""


class Suite:
    """The session of one run. `process.Parent` for the supervisors of the run; closed with it."""

    def __init__(self, options: RunOptions, run_id: str, scratch: Path, *, master_port: int, has_gpus: bool) -> None:
        """Start it, without waiting. Raises OSError where no process can be had."""
        invocation = options.invocation
        self._options, self._scratch = options, scratch
        self._tmpdir = scratch / "w"
        self._tmpdir.mkdir(mode=0o700)
        self._marker = f"{run_id}-suite".ljust(MARKER_ROOM, "_")
        self.env = child_env(
            invocation.environ,
            gpus=None if has_gpus else (),
            tmpdir=str(self._tmpdir),
            marker=self._marker,
            master_port=master_port,
        )
        self.log, self._list = scratch / "session.log", scratch / "found.jsonl"
        self._clock = SystemClock()
        self._found = _Found()
        self._lock = asyncio.Lock()
        self._fresh: Counter[Why] = Counter()
        """Number of processes with an interpreter of their own, by reason."""
        self._why_lost: Why | None = None
        self._standby = 0
        self.notes: list[str] = []
        syscalls.become_subreaper()  # a standby comes to this process when its session ends
        self._start()

    # ---- the process

    def _start(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cwd = self._options.invocation.cwd
        with its, self.log.open("ab") as output:
            process = subprocess.Popen(
                [
                    *pytest_command(self._options, (XDIST, OWN_COVERAGE, SESSION)),
                    f"--rlharness-serve={its.fileno()}",
                    f"--rlharness-found={self._list}",
                    *(f"--rlharness-left-out={why}:{path}" for path, why in self._found.left_out.items()),
                    *self._options.invocation.trailing,
                    *self._options.paths,
                ],
                cwd=cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        process.returncode = 0  # it is waited for here, and so are its standbys, which are nobody else's children
        self._pid, self._socket = process.pid, ours
        self._status: int | None = None
        self._at, self._since_s, self._log_at = "", self._clock.monotonic_s(), 0

    @property
    def pid(self) -> int:
        """Its number; 0 once it has ended."""
        return 0 if self._has_ended() else self._pid

    def _has_ended(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # a standby whose session has just ended is not yet this process's child
                return False
            self._status = status if pid else None
        return self._status is not None

    def _kill(self) -> None:
        """Kill the session, and every process that it has started but its standby."""
        below = process_tree.descendants(self._pid)
        for process in below:
            if process.pid != self._standby:
                process_tree.send_signal(process, signal.SIGKILL)
        if not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitpid(self._pid, 0)[1]
        for _ in range(RESCUE_ROUNDS):
            if not rescue.kill_bearing(self._marker, spare=self._standby):
                return

    # ---- collection

    async def collect(self) -> "dict[str, CollectedFile]":
        """Wait until the suite is collected; its files by their paths. UsageError, CollectionError as pytest has it."""
        lines = GrowingLines(GrowingFile(self._list))
        while True:
            self._take(lines.poll())
            if self._found.facts is not None:
                return self._files()
            if self._has_ended():
                self._take(lines.poll())
                if self._found.facts is None:
                    self._go_on()
                continue
            if self._clock.monotonic_s() - self._since_s > self._limit_s:
                await self._end_stalled()
                continue
            await asyncio.sleep(ROUND_S)

    @property
    def _limit_s(self) -> float:
        """Limit of what goes on: that of a file holds for its import too, and none so short for pytest's own start."""
        limit_s = self._options.collect_timeout_s
        return min(limit_s, self._options.timeout_s) if self._at else max(limit_s, START_S)

    @property
    def facts(self) -> dict[str, Any]:
        """What pytest knows of the whole: `found` of the list."""
        assert self._found.facts is not None
        return self._found.facts

    @property
    def failed_first(self) -> frozenset[str]:
        """Files that pytest's `--ff` is to run first."""
        return frozenset(nodeid.partition("::")[0] for nodeid in self.facts["failed_first"])

    def _take(self, lines: Sequence[bytes]) -> None:
        found = self._found
        for record in json_objects(b"\n".join(lines).decode("utf-8", "replace")):
            self._since_s = self._clock.monotonic_s()
            match record:
                case {"k": "importing", "path": str(path), "log": int(start)}:
                    self._at, self._log_at = path, start
                case {"k": "imported"}:
                    self._at = ""
                case {"k": "standby", "pid": int(pid)}:
                    self._standby = pid
                case {"k": "poisoned", "path": path, "modules": modules}:
                    found.late[path] = replace(_collected_file(record), is_late=True)
                    found.left_out[path], found.modules = "poisoned", modules
                case {"k": "broken", "path": path, "text": text}:
                    found.errors[path], found.left_out[path], self._at = text, "broken", ""
                case {"k": "skipped", "path": path, "reason": reason}:
                    found.skipped[path], self._at = reason, ""
                case {"k": "error", "id": nodeid, "text": text}:
                    found.errors[nodeid] = text
                case {"k": "file", "path": path}:
                    found.files[path] = _collected_file(record)
                case {"k": "found"}:
                    found.facts = record

    def _go_on(self, stacks: str = "", *, timed_out: bool = False) -> None:
        """After the end of a session at the import of a file: have its standby go on without it, or start another."""
        found, at = self._found, self._at
        if at and at not in found.late:
            how = f"reached its limit of {self._limit_s:g} s" if timed_out else _ending(self._status or 0)
            text = f"{at} was being imported when pytest {how}\n{self.output(self._log_at)}\n{stacks}".rstrip()
            found.errors[at], found.left_out[at] = text, "timeout" if timed_out else "ended"
        if not at:
            raise self._failure(timed_out=timed_out)
        self._kill()
        alive = self._standby and process_tree.read_process(self._standby)
        if at and alive and not alive.is_zombie:
            order = {"path": at, "why": found.left_out[at], "modules": found.modules if at in found.late else ()}
            self._socket.send(json.dumps(order).encode())
            self._pid, self._standby, self._status = self._standby, 0, None
            self._at, self._since_s = "", self._clock.monotonic_s()
        else:
            self._standby = 0
            self._socket.close()
            self._start()

    async def _end_stalled(self) -> None:
        tree = [process_tree.read_process(self._pid), *process_tree.descendants(self._pid)]
        shown = [each for each in tree if each is not None and each.pid != self._standby]
        path = self._scratch / "stalled.txt"
        with suppress(OSError):
            await asyncio.to_thread(dump_stacks, shown, str(path), find_py_spy(), self._clock)
        stacks = read_text(path, errors="replace") if path.exists() else ""
        path.unlink(missing_ok=True)
        self._kill()
        self._go_on(stacks, timed_out=True)

    def output(self, start: int = 0) -> str:
        """The end of what it has printed, from the byte `start` on."""
        try:
            with open_regular(self.log) as file:
                file.seek(max(start, file.seek(0, os.SEEK_END) - MAX_OUTPUT_BYTES))
                return file.read(MAX_OUTPUT_BYTES).decode(errors="replace").strip()
        except OSError as error:
            return f"its output cannot be read: {error.strerror}"

    def _failure(self, *, timed_out: bool) -> CollectionError | UsageError:
        output, code = self.output(), os.waitstatus_to_exitcode(self._status or 0)
        if broken := next(iter(self._found.errors.values()), ""):  # which pytest may have reported otherwise
            return CollectionError(broken, remedy="correct the error")
        if code == USAGE and not timed_out:
            _, error, said = output.partition("ERROR: ")
            if said.startswith(UNWRITABLE):
                return CollectionError(said.strip(), remedy=f"make room or permission for {self._scratch}")
            remedy = "change the paths, -k and -m, the arguments after --, or addopts"
            missing = said.partition("file or directory not found: ")[2].partition("\n")[0]
            place = self._options.invocation.cwd / missing
            if missing and place.parent.is_dir() and (found := get_close_matches(place.name, os.listdir(place.parent))):
                remedy = f"did you mean {os.path.join(os.path.dirname(missing), found[0])}?"
            return UsageError(said.strip() if error else output, remedy=remedy)
        how = f"reached its limit of {self._limit_s:g} s" if timed_out else _ending(self._status or 0)
        what = f"the test files cannot be listed: pytest {how}"
        if lack := shortage_at(self._scratch):
            last = output.splitlines()[-1:]  # it ends in the error of the call that found no room
            return CollectionError("\n".join([f"{what}; {lack}", *last]), remedy=MAKE_ROOM)
        if not output and not timed_out:
            return CollectionError(f"{what}, and printed nothing", remedy=ASK_DOCTOR)
        remedy = "raise --collect-timeout, or name fewer paths" if timed_out else "correct pytest's error"
        return CollectionError(f"{what}\n{output}".rstrip(), remedy=remedy)

    def _files(self) -> "dict[str, CollectedFile]":
        """Every file, with those that were left out."""
        found, rootdir = self._found, Path(self.facts["rootdir"])
        files: dict[str, CollectedFile] = {}
        for path, file in found.files.items():
            absolute = os.path.join(rootdir, path)
            above = [os.path.join(each, "conftest.py") for each in Path(absolute).parents]
            broken = next((each for each in (absolute, *above) if each in found.errors), "")
            if any(Path(each) in Path(absolute).parents for each in found.skipped):
                continue
            files[path] = found.late.get(absolute, file)
            if broken:
                timed_out = found.left_out.get(broken) == "timeout"
                files[path] = CollectedFile(error=found.errors[broken], timed_out=timed_out)
        for nodeid, text in found.errors.items():
            if not os.path.isabs(nodeid):
                if not nodeid:
                    raise CollectionError(f"the test files cannot be listed\n{text}", remedy="correct pytest's error")
                files[nodeid] = CollectedFile(error=text)
        self.notes += [f"{os.path.relpath(path, rootdir)} skips itself: {why}" for path, why in found.skipped.items()]
        return files

    # ---- forks

    def why_own(self, env: Mapping[str, str]) -> Why | None:
        """Why a process with this environment needs an interpreter of its own, noted; None for one that is forked."""
        why = self._why_lost
        if why is None and (hazard := self.facts["hazard"]) is not None:
            why = NotForked(hazard[0]), hazard[1]
        if why is None:
            reads = self.facts["reads"].items()
            read = next((f"{name} {reader}" for name, reader in reads if env.get(name) != self.env.get(name)), "")
            why = (NotForked.READS, read) if read else None
        if why is not None:
            self._fresh[why] += 1
        return why

    async def fork(self, stderr: int) -> Forked | None:
        """Fork a supervisor, a child of this process, whose complaints go to the file `stderr`; None where lost."""
        async with self._lock:
            if self._why_lost is not None:
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

    async def replay(self, reports: Sequence[Path], lost: Mapping[str, str], failed: Sequence[str] = ()) -> str:
        """Have pytest hear what became of a unit; why it wants to stop, empty if it does not.

        `reports` are those of its attempts, `lost` tests without an end, with the reason. `failed` are tests that run
        again with `--last-failed`, whatever became of them.
        """
        if self._why_lost is not None:
            return ""
        asked = {"reports": [str(path) for path in reports], "lost": dict(lost), "failed": [*failed]}
        request = json.dumps(asked).encode()
        loop = asyncio.get_running_loop()
        async with self._lock:
            try:
                self._socket.setblocking(False)
                await loop.sock_sendall(self._socket, request)
                answer = await asyncio.wait_for(loop.sock_recv(self._socket, MAX_ANSWER_BYTES), REPLAY_S)
                if not answer:
                    raise ConnectionResetError(f"it ended: {self._last_line()}")
            except OSError as error:  # TimeoutError is one
                self._lose(NotForked.LOST, error)
                return ""
        return str(json.loads(answer)["stop"])

    async def finish(self, limit_s: float, has_failed: bool) -> str:
        """Let pytest finish its session; what went wrong then, empty if nothing did.

        `has_failed` says whether a test has, as far as the run knows.
        """
        if self._why_lost is not None:
            return ""
        self._socket.close()
        until_s = self._clock.monotonic_s() + limit_s
        while not self._has_ended():
            if self._clock.monotonic_s() > until_s:
                self._kill()
                return f"it did not end within {limit_s:g} s"
            await asyncio.sleep(ROUND_S)
        legal = (0, 1, 2, 5) if has_failed else (0, 2, 5)
        return "" if os.waitstatus_to_exitcode(self._status or 0) in legal else f"it {_ending(self._status or 0)}"

    @property
    def isolation(self) -> tuple[IsolationNote, ...]:
        """Why files had an interpreter of their own; nothing where none had."""
        return tuple(
            IsolationNote(IsolationCode.NOT_FORKED, reason=reason, detail=detail, num_processes=num)
            for (reason, detail), num in self._fresh.items()
        )

    def close(self) -> None:
        """End it, and whatever processes it has started."""
        self._standby = 0
        self._kill()  # first: at the end of its orders it would end in order, and write its cache
        self._socket.close()

    def _lose(self, reason: NotForked, error: OSError) -> None:
        self._why_lost = self._why_lost or (reason, str(error))
        self._kill()

    def _last_line(self) -> str:
        lines = [line for line in self.output().splitlines() if line.strip()]
        return one_line(redact_text(lines[-1] if lines else "it printed nothing"), 200)


def _collected_file(record: dict[str, Any]) -> CollectedFile:
    needs = [Need.from_json(each) for each in record["needs"]]
    return CollectedFile(
        need=Need.from_json(record["need"]),
        asks={test: Need.from_json(need) for test, need in record["asks"].items()},
        tests=tuple(ListedTest(name, needs[need], tuple(ties), number) for number, name, need, ties in record["tests"]),
        num_deselected=record["deselected"],
        error="\n\n".join(record["errors"]) or record.get("bad", ""),
    )


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"died of {signal_name(-code)}" if code < 0 else f"exited with {code}"
