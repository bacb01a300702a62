"""Whole runs of small suites as a user has them: a process, its exit status, what it printed and what it recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.process.claims import Claims
from harness.process.supervisor import process_tree

ROOT = Path(__file__).parents[2]
HARNESS = (sys.executable, "-m", "harness")
QUICK = "def test_quick(): pass\n"
PATIENCE_S = 60.0
SET_BY_OTHERS = ("PYTEST_", "RLHARNESS", "CUDA_", "TMPDIR", "MASTER_PORT", "CI", "GITHUB_")


@dataclass(frozen=True)
class Done:
    """A run that is over."""

    directory: Path
    code: int
    stdout: str
    stderr: str

    @property
    def record(self) -> Path:
        """The directory of the latest run."""
        return self.directory / ".rlharness" / "runs" / "latest"

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.record / "events.jsonl")

    def of(self, name: str) -> list[dict[str, Any]]:
        """Events of one name, in order."""
        return [event for event in self.events if event["event"] == name]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Results by the path of the unit; a second one of a unit fails the test."""
        results: dict[str, dict[str, Any]] = {}
        for event in self.of("unit_finished"):
            path = event["result"]["unit"]["path"]
            assert path not in results, f"{path} has two outcomes"
            results[path] = event["result"]
        return results

    @property
    def outcomes(self) -> dict[str, str]:
        return {path: result["outcome"] for path, result in self.results.items()}

    def assert_sound(self) -> None:
        """The record begins and ends as it must, each unit has one outcome, no lease is left."""
        assert (self.record / "events.jsonl").exists(), f"exit {self.code}, no record: {self.stderr}"
        events = self.events
        assert events[0]["event"] == "run_started"
        assert events[-1]["event"] == "run_finished"
        assert events[-1]["exit_code"] == self.code
        units = [unit["path"] for event in self.of("collection_finished") for unit in event["units"]]
        assert sorted(self.results) == sorted(units)
        assert [event["t"] for event in events] == sorted(event["t"] for event in events)
        out: set[tuple[str, str]] = set()
        for event in events:
            if event["event"] == "attempt_started":
                out |= {(event["path"], gpu_id) for gpu_id in event["gpu_ids"]}
            elif event["event"] == "lease_returned":
                out -= {(event["path"], gpu_id) for gpu_id in event["gpu_ids"]}
            elif event["event"] == "gpu_quarantined":
                out.discard((event["path"], event["gpu_id"]))
        assert out == set()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Every line of a record, each of which must be JSON as the standard has it."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


def write_suite(directory: Path, files: Mapping[str, str]) -> Path:
    """Write the files, by their paths; the directory."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return directory


def environment(**more: str) -> dict[str, str]:
    """The variables of this process, without what pytest or a runner around it has set, and with no slow plugin."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_OTHERS)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}


def run(directory: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """`rlharness arguments` in `directory`, to its end."""
    with started(directory, *arguments, env=env, cwd=cwd) as process:
        return ended(process, directory)


class StubGpus:
    """The GPUs of the pretended driver. Their names are the same in all tests: one process has them at a time.

    A run claims the names of its GPUs on the whole machine, and leaves out those that another run holds.
    """

    def __init__(self) -> None:
        self._claims = Claims()
        self._num_runs = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold them, once no other process does."""
        until_s = time.monotonic() + PATIENCE_S
        while not self._claims.try_claim("tests-of-the-stub-driver"):
            assert time.monotonic() < until_s, "another process of tests keeps the GPUs of the pretended driver"
            time.sleep(0.05)
        self._num_runs += 1
        try:
            yield
        finally:
            self._num_runs -= 1
            if not self._num_runs:
                self._claims.close()


stub_gpus = StubGpus()


@contextmanager
def started(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """`rlharness arguments`, running; killed at the end where it still does."""
    turn = stub_gpus.held() if "NVML_STUB_FILE" in (env or {}) else nullcontext()
    with turn, _started(directory, *arguments, env=env, cwd=cwd) as process:
        yield process


@contextmanager
def _started(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [*HARNESS, *arguments],
        cwd=cwd or directory,
        env=environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ended(process: "subprocess.Popen[str]", directory: Path, patience_s: float = PATIENCE_S) -> Done:
    """What became of a started run; subprocess.TimeoutExpired if it has not ended after `patience_s`."""
    stdout, stderr = process.communicate(timeout=patience_s)
    return Done(directory, process.returncode, stdout, stderr)


def bearing(done: Done) -> list[process_tree.Process]:
    """Return the living processes of the latest run's units."""
    marker = f"RLHARNESS_ATTEMPT={done.record.resolve().name}-".encode()
    found = []
    for process in process_tree.all_processes():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # gone meanwhile, or of the kernel
            continue
        if marker in environ and not process.is_zombie:
            found.append(process)
    return found


def interrupted(
    directory: Path, *arguments: str, ready: Callable[[], object], signums: tuple[int, ...] = (signal.SIGINT,)
) -> Done:
    """A run that is sent signals once `ready` says so, each after what the one before has brought into the record."""
    record = Done(directory, 0, "", "").record / "events.jsonl"
    with started(directory, *arguments) as process:
        until(ready, process)
        for number, signum in enumerate(signums, 1):
            process.send_signal(signum)
            if number < len(signums):
                until(partial(_has_taken, record, number), process)
        return ended(process, directory)


def _has_taken(record: Path, num_requests: int) -> bool:
    return record.read_text("utf-8").count("_requested") == num_requests


def until(ready: Callable[[], object], process: "subprocess.Popen[Any]") -> None:
    """Wait for a condition; fail where the run ends first, or time does."""
    until_s = time.monotonic() + PATIENCE_S
    while not ready():
        assert process.poll() is None, f"ended too early: {process.communicate()}"
        assert time.monotonic() < until_s, "the moment never came"
        time.sleep(0.01)
