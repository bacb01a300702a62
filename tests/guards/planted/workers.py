"""Two warm processes that make runs, with two hash seeds, as two runs of a replay have them.

Each has one thread of this process, which writes a request and waits for the answer. A worker that does not answer
within the limit is killed, and another one is started: a fault may hang.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

from rlcore.determinism import worker_environment
from tests.guards.guard import ROOT
from tests.guards.planted.settings import LEVEL, payload
from tests.guards.planted.worker import TRACE

TIMEOUT_S = 600.0
HASH_SEEDS = ("1", "2")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the engine that has ended."""

    trace: Path
    end: str
    """whole, lost (as was asked for), refused (an error of the engine's own), broken (any other), hung."""
    error: str = ""
    what: str = ""
    phases: tuple[str, ...] = ()
    """Where the engine's error says that it lies."""
    is_reached: bool = False
    """Whether the fault has said that its code ran."""
    step: int | None = None
    """In which it ended, or the one after the last; None before the first."""

    @property
    def directory(self) -> Path:
        """Of the run: what a run goes on from."""
        return self.trace.parent


class _Worker:
    """One process, and its requests one after the other."""

    def __init__(self, hash_seed: str) -> None:
        level = worker_environment(LEVEL, {**os.environ, "OMP_NUM_THREADS": "1"})
        own = {**level, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._env = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            is_there, _, _ = select([process.stdout], [], [], TIMEOUT_S)
            answer = process.stdout.readline() if is_there else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.end()
            return {"end": "hung" if process.returncode == -9 else "broken", "what": f"ended by {process.returncode}"}
        told: dict[str, Any] = json.loads(answer)
        return told

    def end(self) -> None:
        """Kill it and wait."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.guards.planted.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=self._env,
        )
        return self._process


class Workers:
    """As many processes as hash seeds; a run goes to the one that is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers = [_Worker(seed) for seed in HASH_SEEDS]
        self._threads = [ThreadPoolExecutor(1) for _ in self._workers]
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    @property
    def num_workers(self) -> int:
        """How many runs are made side by side."""
        return len(self._workers)

    def new_directory(self) -> Path:
        """Make a directory for one run."""
        directory = self._directory / f"{next(self._numbers):05}"
        directory.mkdir()
        return directory

    def start(self, payload: Mapping[str, Any], *, lost_after: int | None = None, worker: int = 0) -> "Future[Run]":
        """Begin a run; `worker` counts round."""
        directory, place = self.new_directory(), worker % len(self._workers)
        request = {"payload": payload, "directory": str(directory), "lost_after": lost_after}
        return self._threads[place].submit(self._made, self._workers[place], request, directory)

    def run(self, payload: Mapping[str, Any], *, lost_after: int | None = None, worker: int = 0) -> Run:
        """The same, waited for."""
        return self.start(payload, lost_after=lost_after, worker=worker).result()

    def honest(self, payloads: Sequence[Mapping[str, Any]]) -> list[Run]:
        """Make runs without a fault, undisturbed; RuntimeError if one does not come to its end."""
        runs = [run.result() for run in [self.start(each, worker=number) for number, each in enumerate(payloads)]]
        for each, run in zip(payloads, runs, strict=True):
            if run.end != "whole":
                raise RuntimeError(f"an honest run, {each}: {run.end} {run.error} {run.what}")
        return runs

    def goldens(self, settings: Iterable[str]) -> dict[str, Run]:
        """Make an honest run of each setting."""
        names = list(dict.fromkeys(settings))
        return dict(zip(names, self.honest([payload(name) for name in names]), strict=True))

    def side_by_side(self, task: Callable[[int, int], str], numbers: Sequence[int]) -> Iterator[str]:
        """What a task gives for each number, in order; as many at a time as there are workers, each with its own."""
        with ThreadPoolExecutor(self.num_workers) as pool:
            for first in range(0, len(numbers), self.num_workers):
                together = numbers[first : first + self.num_workers]
                yield from list(pool.map(task, together, range(self.num_workers)))

    @staticmethod
    def _made(worker: _Worker, request: Mapping[str, Any], directory: Path) -> Run:
        told = worker.ask(request)
        fields = {name: told[name] for name in ("error", "what", "is_reached", "step") if name in told}
        return Run(directory / TRACE, told["end"], phases=tuple(told.get("phases", ())), **fields)
