"""The dispatcher of a run under a virtual clock: 64 nodes of 8 GPUs, 10,000 units, and nodes that die.

    python tests/benchmarks/virtual_cluster.py                      # the three suites
    python tests/benchmarks/virtual_cluster.py --units 1000 --nodes 8 --deaths 2

Everything that decides is the runner's own: the plan, the queue, the leases, the dispatcher and its record of events.
Only attempts are not: one lasts its seconds on a virtual clock, and is lost if its node dies meanwhile.

A decision is one question to the queue, in processor time: which unit starts next, and on which GPUs. The bound of the
makespan counts the nodes that are alive at each moment, and no second of an attempt that was lost. Exit status 1 where
decisions take 1 ms or more on average or at the 99th percentile.
"""

import argparse
import asyncio
import gc
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import log
from pathlib import Path
from statistics import mean
from typing import TypeVar

from harness.core.invocation import Invocation
from harness.core.need import Need
from harness.machine.gpu_watch import GpuWatch
from harness.machine.inventory import Gpu, Inventory
from harness.process.claims import Claims
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.runner import events
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.collection.collect import Collected
from harness.runner.dispatcher import Dispatcher, Recorder
from harness.runner.options import RunOptions
from harness.runner.records.history import MIN_SPREAD
from harness.runner.records.stats import RunState
from harness.runner.reporter import Reporter
from harness.runner.reruns.retries import Retries
from harness.runner.schedule.first_fit import Job, Queue, Table
from harness.runner.schedule.leases import Lease, LeaseTable
from harness.runner.schedule.makespan_bounds import least_node_seconds
from harness.runner.schedule.packing import Plan, plan
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import Script, ScriptedAttempts
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtually

TARGET_S = 1e-3
GPUS_PER_NODE = 8
CPU_UNITS = 4
GPU_GB = 80.0
MEDIAN_S = 60.0
MARGIN_S = 1000.0
"""Virtual seconds, after those that all units take one after another, in which a run is to end."""

L = TypeVar("L")


@dataclass(frozen=True)
class Death:
    """The end of a node; it does not come back."""

    t: float
    """Seconds since the start of the run."""
    node: str


class Nodes:
    """The nodes under the virtual clock: which are alive, and what runs on each."""

    def __init__(self) -> None:
        self._dead: set[str] = set()
        self._running: dict[str, dict[asyncio.Future[str], None]] = {}  # a dictionary keeps their order

    async def spend(self, nodes: Sequence[str], seconds: float) -> str:
        """Let an attempt last `seconds`; the node that dies before, if one does, else nothing."""
        if lost := next((node for node in nodes if node in self._dead), ""):
            return lost
        loop = asyncio.get_running_loop()
        end: asyncio.Future[str] = loop.create_future()
        timer = loop.call_later(seconds, _settle, end, "")
        here = [self._running.setdefault(node, {}) for node in nodes]
        for running in here:
            running[end] = None
        try:
            return await end
        finally:
            timer.cancel()
            for running in here:
                del running[end]

    def lose(self, node: str) -> None:
        """End the node, and with it what runs there."""
        self._dead.add(node)
        for end in self._running.get(node, {}):
            _settle(end, node)


def _settle(end: "asyncio.Future[str]", node: str) -> None:
    if not end.done():
        end.set_result(node)


@dataclass(frozen=True)
class Start:
    """One attempt, in seconds from the start of the run."""

    number: int
    lease: Lease
    start_s: float
    end_s: float
    is_lost: bool


@dataclass(slots=True, kw_only=True)
class VirtualRunner(UnitRunner):
    """Carries out attempts by letting time pass."""

    nodes: Nodes
    seconds: Mapping[int, float]
    """Duration of each unit, by its number."""
    starts: list[Start] = field(default_factory=list)
    """The attempts that have ended."""

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; the events are those of `UnitRunner.run`."""
        began_s = self.t()
        self.post(events.AttemptStarted(began_s, unit.path, lease.gpu_ids, lease.slot, ""))
        lost = await self.nodes.spend(lease.nodes, self.seconds[number])
        self.starts.append(Start(number, lease, began_s, self.t(), bool(lost)))
        if lost and self._is_lost(number, unit, lease):
            return
        self.post(events.LeaseReturned(self.t(), unit.path, lease.gpu_ids))
        outcome = Outcome.SUPERVISOR_LOST if lost else Outcome.PASSED
        self.post(events.UnitFinished(self.t(), UnitResult(unit, outcome, duration_s=self.seconds[number])))


class TimedQueue(Queue):
    """The runner's queue, with the processor time that each decision takes."""

    def __init__(self, order: Sequence[Job], t: Callable[[], float]) -> None:
        super().__init__(order)
        self._t = t
        self.decisions_s: list[float] = []
        self.last_start_s = 0.0

    def next(self, table: Table[L]) -> tuple[Job, L] | None:
        began_s = time.process_time()
        chosen = super().next(table)
        self.decisions_s.append(time.process_time() - began_s)
        if chosen is not None:
            self.last_start_s = self._t()
        return chosen


@dataclass
class VirtualRun:
    """One run on a cluster under the virtual clock."""

    jobs: Sequence[Job]
    table: LeaseTable
    deaths: Sequence[Death] = ()
    seconds: Mapping[int, float] | None = None
    """Durations by the number of the unit; None for those expected."""
    reporters: Sequence[Reporter] = ()

    def __post_init__(self) -> None:
        self.units = tuple(Unit(f"test_{i}.py", job.need, NeedSource.AST) for i, job in enumerate(self.jobs))
        self.state = RunState()
        self.planned: Plan | None = None
        self.planning_s = self.running_s = 0.0
        """Processor time of the plan, and of the run."""

    def run(self) -> "VirtualRun":
        """Run it to its end; itself."""
        loop = VirtualLoop()
        run_virtually(self._run(VirtualClock(loop)), loop)
        return self

    async def _run(self, clock: VirtualClock) -> None:
        began_s = time.process_time()
        self.planned = plan(self.jobs, self.table)
        self.planning_s = time.process_time() - began_s
        recorder = Recorder(self.state, self.reporters, clock)
        self.queue = TimedQueue(self.planned.order, recorder.t)
        with Claims() as claims, tempfile.TemporaryDirectory() as directory:
            self.runner = self._runner(Path(directory), claims, recorder, clock)
            dispatcher = Dispatcher(self.units, self.queue, self.table, self.runner, recorder)
            gpus = tuple(str(gpu) for gpu in self.table.free_gpus)
            recorder.take(events.RunStarted(0.0, "run", directory, gpus, (), (), "none", self.table.cpu_units))
            expected_s = tuple(job.expected_s for job in self.jobs)
            recorder.take(events.CollectionFinished(0.0, self.units, expected_s, 0.0, 0.0, 0.0))
            killer = asyncio.create_task(self._kill(dispatcher, recorder))
            began_s = time.process_time()
            seconds, deaths = self.runner.seconds.values(), self.deaths
            try:  # a unit that starves is an error, not a run without an end
                async with asyncio.timeout(max((death.t for death in deaths), default=0.0) + sum(seconds) + MARGIN_S):
                    await dispatcher.run()
            finally:
                killer.cancel()
            self.running_s = time.process_time() - began_s

    def _runner(self, directory: Path, claims: Claims, recorder: Recorder, clock: VirtualClock) -> VirtualRunner:
        return VirtualRunner(
            options=RunOptions(Invocation(directory, {}), directory, cpu_units=self.table.cpu_units),
            collected=Collected(self.units, directory, ()),
            attempts=ScriptedAttempts(lambda _: Script()),
            watch=GpuWatch(FakeMeter(), clock),
            ports=PortBlocks(claims, read_ephemeral_range()),
            run_id="run",
            run_directory=directory,
            scratch=directory,
            retries=Retries(0),
            t=recorder.t,
            nodes=Nodes(),
            seconds=self.seconds or {i: job.expected_s for i, job in enumerate(self.jobs)},
        )

    async def _kill(self, dispatcher: Dispatcher, recorder: Recorder) -> None:
        for death in sorted(self.deaths, key=lambda death: death.t):
            await asyncio.sleep(death.t - recorder.t())
            self.runner.nodes.lose(death.node)
            dispatcher.post(events.NodeLost(recorder.t(), death.node, "it died"))


def cluster(num_nodes: int, gpus_per_node: int = GPUS_PER_NODE, cpu_units: int = CPU_UNITS) -> LeaseTable:
    """A table of equal nodes, `node0` and so on."""
    gpus = tuple(
        Gpu(f"node{node}/SIM-{i}", i, "pretended", GPU_GB, node=f"node{node}")
        for node in range(num_nodes)
        for i in range(gpus_per_node)
    )
    return LeaseTable(Inventory(gpus, pretended=True), cpu_units, nodes=[f"node{node}" for node in range(num_nodes)])


def bound_s(run: VirtualRun) -> float:
    """Least makespan of the units that have passed, whatever the schedule, on the nodes while they are alive."""
    seconds = run.runner.seconds
    passed = [
        replace(job, expected_s=seconds[i])
        for i, job in enumerate(run.jobs)
        if run.state.results[run.units[i].path].outcome is Outcome.PASSED
    ]
    sizes = [gpus.bit_count() for gpus in run.table.choice.node_gpus.values()]
    on_gpus = [job for job in passed if job.need.gpus]
    node_s, _ = least_node_seconds(on_gpus, max(sizes), round(GPU_GB * 1e9)) if on_gpus else (0.0, None)
    cpu_s = sum(job.expected_s for job in passed if not job.need.gpus) * len(sizes) / run.table.cpu_units
    longest_s = max((job.expected_s for job in passed), default=0.0)
    ends = sorted(death.t for death in run.deaths)
    return max(longest_s, _time_for(node_s, len(sizes), ends), _time_for(cpu_s, len(sizes), ends))


def _time_for(node_s: float, num_nodes: int, ends: Sequence[float]) -> float:
    """When so many seconds have passed on nodes, of which some end at `ends`, ascending."""
    now_s = 0.0
    for num_lost, end_s in enumerate(ends):
        if node_s <= (num_nodes - num_lost) * (end_s - now_s):
            return now_s + node_s / (num_nodes - num_lost)
        node_s -= (num_nodes - num_lost) * (end_s - now_s)
        now_s = end_s
    return now_s + node_s / (num_nodes - len(ends)) if num_nodes > len(ends) else now_s


@dataclass(frozen=True)
class Suite:
    """A family of units; durations are lognormal, median 60 s."""

    name: str
    draw_need: Callable[[random.Random], Need]
    sigma: float = 1.0
    error_sigma: float = 0.0
    """Error of the expected durations."""

    def draw(self, num_units: int, rng: random.Random) -> tuple[list[Job], dict[int, float]]:
        """Return the units as expected, and their true durations."""
        jobs, seconds = [], {}
        for i in range(num_units):
            seconds[i] = rng.lognormvariate(log(MEDIAN_S), self.sigma)
            error = rng.lognormvariate(0.0, self.error_sigma) if self.error_sigma else 1.0
            spread = max(self.error_sigma, MIN_SPREAD)
            jobs.append(Job(i, self.draw_need(rng), seconds[i] * error, spread))
        return jobs, seconds


def any_need(rng: random.Random) -> Need:
    """GPUs of one node, or none; one unit of a hundred asks for two nodes."""
    if rng.random() < 0.01:
        return Need(gpus=2 * GPUS_PER_NODE, nodes=2)
    return Need(gpus=rng.choice((0, 1, 1, 2, 4, 8)))


def budget_or_any(rng: random.Random) -> Need:
    """Half of the units have a budget of their own on a GPU that they share."""
    if rng.random() < 0.5:
        return Need(gpus=1, memory_gb=round(rng.uniform(3.0, 40.0), 3), shared=True)
    return any_need(rng)


SUITES = (
    Suite("0 to 8 GPUs, and two nodes; durations known", any_need),
    Suite("the same; durations estimated, off by sigma 0.7", any_need, error_sigma=0.7),
    Suite("half with budgets, each another; durations known", budget_or_any),
)


def draw_deaths(num_deaths: int, num_nodes: int, span_s: float, rng: random.Random) -> list[Death]:
    """Return nodes that die, each at a moment of the first `span_s` seconds."""
    return [Death(rng.uniform(0.0, span_s), f"node{node}") for node in rng.sample(range(num_nodes), num_deaths)]


def occupied_gpu_s(starts: Sequence[Start], until_s: float) -> float:
    """Seconds until `until_s` in which GPUs have a lease, summed over the GPUs; those of a shared GPU count once."""
    by_gpu: dict[str, list[tuple[float, float]]] = {}
    for start in starts:
        for gpu_id in start.lease.gpu_ids:
            by_gpu.setdefault(gpu_id, []).append((start.start_s, min(start.end_s, until_s)))
    total_s = 0.0
    for spans in by_gpu.values():
        covered_s = 0.0
        for start_s, end_s in sorted(spans):
            total_s += max(0.0, end_s - max(start_s, covered_s))
            covered_s = max(covered_s, end_s)
    return total_s


def report(suite: Suite, run: VirtualRun) -> Iterator[str]:
    """What a run has shown, as lines."""
    decisions_us = sorted(1e6 * each for each in run.queue.decisions_s)
    mean_us, p99_us = mean(decisions_us), decisions_us[int(0.99 * len(decisions_us))]
    makespan_s, least_s = run.state.makespan_s, bound_s(run)
    starts = run.runner.starts
    lost = [start for start in starts if start.is_lost]
    lost_gpu_s = sum((start.end_s - start.start_s) * len(start.lease.gpus) for start in lost)
    ends = dict.fromkeys(run.table.choice.node_gpus, makespan_s) | {death.node: death.t for death in run.deaths}

    def alive_gpu_s(until_s: float) -> float:
        return GPUS_PER_NODE * sum(min(end_s, until_s) for end_s in ends.values())

    last_s = run.queue.last_start_s
    idle = alive_gpu_s(last_s) - occupied_gpu_s(starts, last_s)
    idle_later = alive_gpu_s(makespan_s) - occupied_gpu_s(starts, makespan_s) - idle
    percent = 100 / alive_gpu_s(makespan_s)
    yield suite.name
    yield (
        f"  {len(decisions_us):,} decisions: mean {mean_us:.0f} us, p99 {p99_us:.0f} us, most "
        f"{decisions_us[-1]:.0f} us; {1e6 / mean_us:,.0f} a second"
    )
    yield f"  plan {run.planning_s:.1f} s; dispatcher {1e6 * run.running_s / len(run.units):.0f} us a unit, all of it"
    yield f"  makespan {makespan_s:,.0f} s, bound {least_s:,.0f} s: {makespan_s / least_s:.4f}"
    yield (
        f"  {len(lost)} attempts lost with {len(run.deaths)} nodes. GPU-seconds: lost {percent * lost_gpu_s:.2f} %, "
        f"idle until the last start {percent * idle:.2f} %, idle after it {percent * idle_later:.2f} %"
    )
    is_fast = mean_us < 1e6 * TARGET_S and p99_us < 1e6 * TARGET_S
    yield f"  {'PASS' if is_fast else 'FAIL'}: mean and p99 of decisions are to be below {1e3 * TARGET_S:g} ms"


def main() -> int:
    """Run every suite and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--deaths", type=int, default=6, help="nodes that die during the run  [default: 6]")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} "
        f"cores, load {os.getloadavg()[0]:.1f}; {args.units:,} units, {args.nodes} nodes of {GPUS_PER_NODE} GPUs, "
        f"{args.deaths} of which die, seed {args.seed}"
    )
    has_failed = False
    for suite in SUITES:
        rng = random.Random(f"{args.seed} {suite.name}")
        jobs, seconds = suite.draw(args.units, rng)
        work_s = sum((job.need.gpus or 1) * seconds[job.index] for job in jobs) / (args.nodes * GPUS_PER_NODE)
        deaths = draw_deaths(args.deaths, args.nodes, 0.8 * work_s, rng)
        gc.collect()
        lines = list(report(suite, VirtualRun(jobs, cluster(args.nodes), deaths, seconds).run()))
        print("\n" + "\n".join(lines), flush=True)
        has_failed |= "FAIL" in lines[-1]
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
