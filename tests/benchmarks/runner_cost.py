"""What the runner itself costs: processor time per unit and peak memory, its supervisors included and pytest excluded.

    python tests/benchmarks/runner_cost.py                    # 2,000 units
    python tests/benchmarks/runner_cost.py --units 200 --backend pidns

The real runner runs a suite of small files in which a stand-in takes the place of pytest (stand_in/pytest.py): it
says how much processor time it has used, and that is taken off. All the rest is the runner's: its own process,
every supervisor, and what the kernel does for them. What is charged to the
stand-in and should not be is the supervisor's part between the fork and the exec of the leader, about a millisecond.

Peers in the same run: `subprocess.run` per file with the same stand-in and the same accounting; and the controller of
`pytest -n 2` with real pytest, where pytest-xdist is installed. Last, some of the files are run by real pytest, one
after another, bare and under the runner, and whole process trees compared: a check on the accounting from outside.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in")
SAMPLE_S = 0.5
NUM_GPUS = 8
NUM_WIDTHS = 3
SUPERVISOR = "harness.process.supervisor"
"""Text in the arguments of every supervisor."""

# Runs a module as `python -m` would, then writes what its process has used.
MEASURED = """
import json, resource, runpy, sys
out, module = sys.argv.pop(1), sys.argv[1]
del sys.argv[1]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as exit:
    status = exit.code
own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
peak_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
used = {"own_s": own.ru_utime + own.ru_stime, "children_s": children.ru_utime + children.ru_stime}
with open(out, "w") as file:
    json.dump({**used, "peak_bytes": int(peak_kb) * 1024, "status": status}, file)
"""


@dataclass(frozen=True, slots=True)
class Used:
    """What one measured process has used."""

    own_s: float
    """Processor time of the process itself."""
    children_s: float
    """Of everything it waited for, and of what that waited for."""
    peak_bytes: int
    """Of its resident memory."""
    status: int
    wall_s: float


@dataclass(slots=True)
class Supervisors:
    """What a sampler saw of the runner's supervisors."""

    peak_pss_bytes: int = 0
    """The most that all of them held at once, shared pages divided among their sharers."""
    num_at_peak: int = 0
    """Processes there were then."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Where the files are, and how the stand-in behaves."""

    directory: Path
    num_units: int
    num_tests: int
    leader_s: float

    @property
    def costs_file(self) -> Path:
        return self.directory / "costs.jsonl"

    def environment(self, *, stand_in: bool = True) -> dict[str, str]:
        """The parent's, with this checkout importable and, where wanted, the stand-in before pytest."""
        parent = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        path = [*([str(STAND_IN)] if stand_in else []), str(ROOT)]
        return {
            **parent,
            "PYTHONPATH": os.pathsep.join(path),
            "XDG_CACHE_HOME": str(self.directory / "cache"),  # for the history of durations
            "RLH_STAND_IN_COSTS": str(self.costs_file),
            "RLH_STAND_IN_TESTS": str(self.num_tests),
            "RLH_STAND_IN_S": str(self.leader_s),
        }

    def take_costs(self) -> dict[str, float]:
        """Processor time the stand-ins have noted since the last time, by what they were."""
        totals = {"unit": 0.0, "collection": 0.0}
        for line in self.costs_file.read_text("utf-8").splitlines():
            record = json.loads(line)
            totals[record["what"]] += record["cpu_s"]
        self.costs_file.unlink()
        return totals


def write_suite(directory: Path, num_units: int, num_tests: int, leader_s: float) -> Suite:
    """Small files in rooms of a hundred: every third needs no GPU, the next one, the next two."""
    tests = "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(num_tests))
    for number in range(num_units):
        room = directory / f"tests/room_{number // 100:02}"
        room.mkdir(parents=True, exist_ok=True)
        gpus = number % NUM_WIDTHS
        mark = f"import pytest\n\npytestmark = pytest.mark.gpus({gpus})\n\n\n" if gpus else ""
        (room / f"test_file_{number:04}.py").write_text(mark + tests, "utf-8")
    (directory / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\nmarkers = ['gpus']\n", "utf-8"
    )
    return Suite(directory, num_units, num_tests, leader_s)


def measured(suite: Suite, module: str, *arguments: str, environment: Mapping[str, str]) -> tuple[Used, Supervisors]:
    """Run `python -m module arguments` over the suite; RuntimeError with its output where it fails."""
    out = suite.directory / "used.json"
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURED, str(out), module, *arguments],
        cwd=suite.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with sampled(process.pid) as supervisors:
        output, _ = process.communicate()
    wall_s = time.monotonic() - start_s
    used = Used(**json.loads(out.read_text("utf-8")), wall_s=wall_s) if out.exists() else None
    if used is None or used.status != 0:
        raise RuntimeError(f"{module} failed:\n{output[-4000:]}")
    out.unlink()
    return used, supervisors


@contextmanager
def sampled(pid: int) -> Iterator[Supervisors]:
    """Look at the supervisors below `pid` again and again."""
    seen = Supervisors()
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            sizes = supervisor_sizes_bytes(pid)
            if sum(sizes) > seen.peak_pss_bytes:
                seen.peak_pss_bytes, seen.num_at_peak = sum(sizes), len(sizes)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def supervisor_sizes_bytes(pid: int) -> list[int]:
    """Proportional set size of each supervisor below `pid`, and of what it has forked and not replaced."""
    sizes = []
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    for process in below:
        try:
            if any(SUPERVISOR in word for word in process.cmdline()):
                sizes.append(process.memory_full_info().pss)
        except psutil.Error:  # it has ended meanwhile
            continue
    return sizes


def bare(suite: Suite, environment: Mapping[str, str], files: list[Path]) -> Used:
    """The simplest runner there is: one `subprocess.run` after another."""
    before, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.monotonic()
    for file in files:
        report = f"--rlharness-report={suite.directory / 'bare.jsonl'}"
        command = [sys.executable, "-m", "pytest", "-p", "harness.plugin", report, str(file)]
        subprocess.run(
            command,
            cwd=suite.directory,
            env={**environment, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            check=True,
        )
    wall_s = time.monotonic() - start_s
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(
        own_s=own.ru_utime + own.ru_stime - before.ru_utime - before.ru_stime,
        children_s=children.ru_utime + children.ru_stime - below.ru_utime - below.ru_stime,
        peak_bytes=0,
        status=0,
        wall_s=wall_s,
    )


def run_options(args: argparse.Namespace, junit: Path) -> list[str]:
    """The runner's arguments: GPUs that are pretended, every report on."""
    options = ["run", "--gpus", f"sim:{NUM_GPUS}", "--cpu-units", str(args.cpu_units), "--plain"]
    return [*options, "--isolate", "interpreter", "--containment", args.backend, "--junit", str(junit)]


def figures(suite: Suite, args: argparse.Namespace) -> Iterator[str]:
    """A line per figure, as each is known."""
    environment = suite.environment()
    runner, supervisors = measured(
        suite, "harness", *run_options(args, suite.directory / "junit.xml"), environment=environment
    )
    stand_ins = suite.take_costs()
    num = suite.num_units
    supervisors_s = runner.children_s - sum(stand_ins.values())
    own_ms, supervisors_ms = 1e3 * runner.own_s / num, 1e3 * supervisors_s / num
    yield (
        f"processor time per unit: {own_ms + supervisors_ms:.1f} ms (runner {own_ms:.1f} ms, supervisor"
        f" {supervisors_ms:.1f} ms); the stand-in's {1e3 * stand_ins['unit'] / num:.1f} ms a unit are left out, and"
        f" {stand_ins['collection']:.1f} s of one collecting pytest; wall {runner.wall_s:.0f} s"
    )
    peak_mb, pss_mb = runner.peak_bytes / 1e6, supervisors.peak_pss_bytes / 1e6
    yield (
        f"memory: {peak_mb + pss_mb:.1f} MB (runner's peak {peak_mb:.1f} MB,"
        f" supervisors, {supervisors.num_at_peak} processes at once, {pss_mb:.1f} MB)"
    )
    files = sorted(suite.directory.glob("tests/*/*.py"))
    peer = bare(suite, environment, files[: args.peer_units])
    peer_ms = 1e3 * (peer.own_s + peer.children_s - suite.take_costs()["unit"]) / min(args.peer_units, num)
    yield (
        f"subprocess.run per file, no supervision: {peer_ms:.1f} ms per unit;"
        f" the runner's cost is {(own_ms + supervisors_ms) / peer_ms:.1f} times that"
    )
    yield xdist_line(suite, own_ms)
    yield real_line(suite, files[::NUM_WIDTHS][: args.real_units])


def xdist_line(suite: Suite, own_ms: float) -> str:
    """The controller of `pytest -n 2`, which gives every file to processes that stay."""
    try:
        found = version("pytest-xdist")
    except PackageNotFoundError:
        return "pytest -n 2: pytest-xdist is not installed"
    used, _ = measured(suite, "pytest", "-q", "-n", "2", environment=suite.environment(stand_in=False))
    per_unit_ms = 1e3 * used.own_s / suite.num_units
    return (
        f"controller of pytest -n 2 (xdist {found}), real pytest, no process of its own for any file: {per_unit_ms:.1f}"
        f" ms per unit, peak {used.peak_bytes / 1e6:.1f} MB; the runner's own process uses {own_ms / per_unit_ms:.1f}"
        " times that"
    )


def real_line(suite: Suite, files: list[Path]) -> str:
    """Whole process trees with real pytest: what the runner adds, by subtraction."""
    environment = suite.environment(stand_in=False)
    alone = bare(suite, environment, files)
    names = [str(file) for file in files]
    options = ["run", "--gpus", "none", "--cpu-units", "1", "--plain"]
    under, _ = measured(suite, "harness", *options, *names, environment=environment)
    alone_ms = 1e3 * (alone.own_s + alone.children_s) / len(files)
    under_ms = 1e3 * (under.own_s + under.children_s) / len(files)
    return (
        f"real pytest, {len(files)} files, whole trees: {alone_ms:.0f} ms per file bare, {under_ms:.0f} ms under the"
        f" runner; of the {under_ms - alone_ms:.0f} ms between, its start and its collection take a share that falls"
        " with the number of files"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=2000)
    parser.add_argument("--tests", type=int, default=10, help="in each file")
    parser.add_argument("--leader-s", type=float, default=0.5, help="how long each stand-in lives at least")
    parser.add_argument("--cpu-units", type=int, default=4)
    parser.add_argument("--backend", default="auto", choices=["auto", "cgroup", "pidns", "subreaper"])
    parser.add_argument("--peer-units", type=int, default=100, help="files given to subprocess.run")
    parser.add_argument("--real-units", type=int, default=20, help="files given to real pytest")
    args = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, pytest {version('pytest')},"
        f" {platform.system()} {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        f" {args.units} units of {args.tests} tests,"
        f" {NUM_GPUS} pretended GPUs, containment {args.backend}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="rlh-cost-") as scratch:
        for line in figures(write_suite(Path(scratch), args.units, args.tests, args.leader_s), args):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
