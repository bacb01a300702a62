"""Workers in child processes of the controller, one for each rank, on one machine. Needs torch and nothing else.

    the caller's thread                     the reading thread                    a worker's process
    submit ── Call ──────────────────────────────────────────────────────────────▶ perform, call after call
    results ◀── a future for each rank ──── set result ◀────── Answer ────────────
                                            set WorkerDiedError ◀── sentinel ───── ended, however
                                            and end the others

The reading thread always reads, so that no worker waits for a full pipe while the caller waits for the worker.
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from rlcore.distributed.backends.base import DEATH_S, Launch
from rlcore.distributed.backends.blocks import encode
from rlcore.distributed.backends.process_worker import Answer, Call, Start, send, serve
from rlcore.distributed.backends.rendezvous import LOOPBACK, Rendezvous
from rlcore.distributed.calls import Failure, place
from rlcore.distributed.scatter import Scattered
from rlcore.distributed.worker import WorkerContext, rank_environment
from rlcore.errors import WorkerDiedError, WorkerError

_STARTING = threading.Lock()
"""Held while this process has the environment of a child."""


class _Failed(Exception):
    """Carries a Failure through a future, so that a caller who waits for several ranks sees it at once."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Calling:
    """A call that ranks run."""

    futures: Mapping[int, Future[Any]]
    check: Callable[[], None]
    """As `Started.check`."""

    def is_done(self) -> bool:
        """As `Pending.is_done`."""
        return all(future.done() for future in self.futures.values())

    def results(self, timeout_s: float | None) -> dict[int, Any]:
        """As `Pending.results`."""
        done, running = wait_for(self.futures.values(), timeout_s, FIRST_EXCEPTION)
        found = {rank: future for rank, future in self.futures.items() if future in done}
        failed = {rank: future.exception() for rank, future in found.items() if future.exception() is not None}
        for error in failed.values():
            if isinstance(error, _Death | _Closed):
                raise error.fresh()
        if failed:
            wait_for(running, DEATH_S)
            self.check()
            return {rank: error.failure for rank, error in failed.items() if isinstance(error, _Failed)}
        if running:
            raise TimeoutError(f"ranks {[rank for rank in self.futures if rank not in found]} still run")
        return {rank: future.result() for rank, future in found.items()}


class _Death(Exception):
    """A process that has ended; each caller is given an error of its own."""

    def __init__(self, launch: Launch, rank: int, process: SpawnProcess, method: str) -> None:
        super().__init__(launch.name)
        self._launch, self._rank, self._method = launch, rank, method
        self._pid, self._code = process.pid or 0, process.exitcode

    def fresh(self) -> WorkerDiedError:
        """Return the error."""
        code = self._code
        how = "has ended" if code is None else f"exited with {code}"
        if code is not None and code < 0:
            how = f"was killed by {_signal_name(-code)}"
        where = place(self._launch.name, self._rank, self._launch.size, self._pid, self._method or "none: it waited")
        return WorkerDiedError(
            f"a process {how}: {where}",
            role=self._launch.name,
            rank=self._rank,
            pid=self._pid,
            exit_code=code,
            remedy="resume from the last checkpoint; for SIGKILL the kernel's log says whether memory was short",
        )


class _Closed(Exception):
    """A group that was closed while a call ran."""

    def fresh(self) -> WorkerError:
        """Return the error."""
        return WorkerError(
            f"group {self.args[0]} was closed before the call had returned",
            role=str(self.args[0]),
            remedy="take results before the group is closed",
        )


class ChildWorkers:
    """As `Started`, for child processes."""

    def __init__(self, launch: Launch, rendezvous: Rendezvous) -> None:
        """Start processes for a launch; `ChildProcesses.start` waits for them."""
        self._launch, self._rendezvous = launch, rendezvous
        self._processes: list[SpawnProcess] = []
        self._connections: list[Connection] = []
        self._process_ids: list[int] = []
        self._sending = threading.Lock()  # calls reach all ranks in one order
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[tuple[int, int], tuple[str, Future[Any]]] = {}  # (rank, number): method, future
        self._death: _Death | None = None
        self._is_ending = self._has_ended = False
        self._wake, self._woken = multiprocessing.get_context("spawn").Pipe()
        self._reader = threading.Thread(target=self._read, name=f"rlcore-{launch.name}", daemon=True)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """As `Started.process_ids`."""
        return tuple(self._process_ids)

    def launch(self) -> Calling:
        """Start the processes, and return their construction."""
        futures: dict[int, Future[Any]] = {}
        specs = encode(self._launch.specs)
        for rank in range(self._launch.size):
            self._processes.append(self._spawn(rank))
            futures[rank] = Future()
            self._waiting[rank, 0] = ("__init__", futures[rank])
        self._reader.start()
        for rank, connection in enumerate(self._connections):
            context = WorkerContext("", rank, self._launch.size, rank, has_rendezvous=True)
            with contextlib.suppress(OSError):  # the reading thread finds that the process has ended
                send(connection, Start(specs, context, self._launch.environment))
        return Calling(futures, self.check)

    def submit(self, role: str, method: str, call: Scattered) -> Calling:
        """As `Started.submit`."""
        messages = [(payload.ranks, encode(payload.arguments)) for payload in call.payloads]
        futures: dict[int, Future[Any]] = {rank: Future() for rank in call.ranks}
        with self._sending:
            with self._lock:
                self.check()
                self._number += 1
                self._waiting |= {(rank, self._number): (method, future) for rank, future in futures.items()}
            for rank in call.ranks:
                own = tuple(message for ranks, message in messages if rank in ranks)
                with contextlib.suppress(OSError):  # the reading thread finds that the process has ended
                    send(self._connections[rank], Call(self._number, role, method, own))
        return Calling(futures, self.check)

    def check(self) -> None:
        """As `Started.check`."""
        if self._death is not None:
            raise self._death.fresh()

    def end(self) -> None:
        """As `Started.end`. It can be interrupted and called again."""
        if self._has_ended:
            return
        self._is_ending = True
        for process in self._processes:
            process.kill()
        if self._reader.is_alive():
            self._wake.send_bytes(b"")
            self._reader.join()
        for process in self._processes:
            process.join()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            future.set_exception(_Closed(self._launch.name))
        for connection in (*self._connections, self._wake, self._woken):
            connection.close()
        self._rendezvous.close()
        self._has_ended = True
        atexit.unregister(self.end)

    def _spawn(self, rank: int) -> SpawnProcess:
        """Start the process of a rank, with its environment and, until it ignores SIGINT, with that blocked."""
        context = multiprocessing.get_context("spawn")
        own, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, os.getpid()), name=f"{self._launch.name}-{rank}")
        size = self._launch.size
        variables = rank_environment(rank, size, rank, size, self._rendezvous.address)
        with _environment({**self._launch.environment, **variables}), _without_interrupts():
            process.start()
        theirs.close()
        self._connections.append(own)
        self._process_ids.append(process.pid or 0)
        return process

    def _read(self) -> None:
        """Hand out answers until the group ends; a process that ends fails all calls, and ends the others."""
        ranks: dict[Any, int] = {connection: rank for rank, connection in enumerate(self._connections)}
        ranks |= {process.sentinel: rank for rank, process in enumerate(self._processes)}
        while True:
            ready = wait([*ranks, self._woken])
            if self._woken in ready or self._is_ending:
                return
            for each in ready:
                if isinstance(each, Connection) and not self._take(ranks[each], each):
                    del ranks[each]  # its sentinel follows
            ended = [ranks[each] for each in ready if isinstance(each, int)]
            if ended:
                self._die(min(ended))
                return

    def _take(self, rank: int, connection: Connection) -> bool:
        """Hand out an answer. Return False if the connection has ended."""
        try:
            content = connection.recv_bytes()
        except (EOFError, OSError):
            return False
        try:
            answer: Answer = pickle.loads(content)
            outcome = answer.outcome.decode()
        except (EOFError, OSError):  # the process ended before its memory was fetched
            return False
        except Exception as error:  # what the classes of a result raise when they are unpickled here
            number = min(number for each, number in self._waiting if each == rank)
            self._settle(rank, number, Failure.of(WorkerError(f"a result cannot be read: {error!r}", rank=rank)))
            return True
        self._settle(rank, answer.number, outcome)
        return True

    def _settle(self, rank: int, number: int, outcome: Any) -> None:
        with self._lock:
            _, future = self._waiting.pop((rank, number))
        if isinstance(outcome, Failure):
            future.set_exception(_Failed(outcome))
        else:
            future.set_result(outcome)

    def _die(self, rank: int) -> None:
        """Note a death, end the other processes, and fail every call."""
        process, connection = self._processes[rank], self._connections[rank]
        process.join()
        while connection.poll() and self._take(rank, connection):
            pass
        with self._lock:
            methods = [method for (each, _), (method, _) in sorted(self._waiting.items(), key=_key) if each == rank]
            self._death = _Death(self._launch, rank, process, methods[0] if methods else "")
            waiting, self._waiting = self._waiting, {}
        for other in self._processes:
            other.kill()
        for other in self._processes:
            other.join()
        for _, future in waiting.values():
            with contextlib.suppress(InvalidStateError):
                future.set_exception(self._death)


@dataclass(frozen=True, slots=True)
class ChildProcesses:
    """Workers in child processes of this one, on this machine."""

    start_timeout_s: float = 600.0
    """Time for all workers to be constructed."""

    def start(self, launch: Launch) -> ChildWorkers:
        """As `Backend.start`."""
        workers = ChildWorkers(launch, Rendezvous(LOOPBACK))
        atexit.register(workers.end)  # after multiprocessing's own hook, so before it, which would wait for the workers
        try:
            constructed = workers.launch()
            for rank, outcome in sorted(constructed.results(self.start_timeout_s).items()):
                if isinstance(outcome, Failure):
                    where = place(launch.name, rank, launch.size, workers.process_ids[rank], "__init__")
                    raise outcome.rebuilt(launch.name, rank, where)
        except TimeoutError as error:
            workers.end()
            raise WorkerError(
                f"group {launch.name} was not constructed within {self.start_timeout_s} s: {error}",
                role=launch.name,
                remedy="a larger start_timeout_s, or look at what its constructor waits for",
            ) from None
        except BaseException:
            workers.end()
            raise
        return workers


def _key(item: tuple[tuple[int, int], object]) -> tuple[int, int]:
    return item[0]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give this process variables, which a child inherits, and take them back."""
    with _STARTING:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT, which a child inherits; one that comes meanwhile is delivered here afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
