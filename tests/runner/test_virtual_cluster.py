"""The dispatcher on a cluster under a virtual clock, whatever nodes die and when; the benchmark in small."""

import asyncio
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.need import Need
from harness.runner import events
from harness.runner.attempts.unit_run import MAX_LOST
from harness.runner.records.stats import RunState
from harness.runner.schedule.first_fit import Job
from harness.runner.units import Outcome
from tests.benchmarks.virtual_cluster import SUITES, Death, VirtualRun, bound_s, cluster, draw_deaths, main, report
from tests.support.virtual_time import VirtualLoop, run_virtually

SEEDED = settings(derandomize=True)
NEEDS = st.one_of(
    st.sampled_from([Need(), Need(exclusive=True), Need(gpus=1, exclusive=True), Need(gpus=2, nodes=2)]),
    st.sampled_from([Need(gpus=1), Need(gpus=1), Need(gpus=2), Need(gpus=3), Need(gpus=4, nodes=2)]),
    st.sampled_from([20.0, 30.5, 41.0, 80.0]).map(lambda gb: Need(gpus=1, memory_gb=gb, shared=True)),
)


class Finished:
    """A reporter that counts outcomes."""

    def __init__(self) -> None:
        self.by_path: Counter[str] = Counter()

    def on_event(self, event: events.Event, state: RunState) -> None:
        if isinstance(event, events.UnitFinished):
            self.by_path[event.result.unit.path] += 1

    def close(self) -> None:
        """Nothing is held."""


@st.composite
def runs(draw: st.DrawFn) -> VirtualRun:
    """Up to a dozen units on up to three nodes, any of which may die at any moment."""
    table = cluster(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    needs = draw(st.lists(NEEDS, max_size=12))
    expected_s = draw(st.lists(st.integers(1, 9).map(float), min_size=len(needs), max_size=len(needs)))
    jobs = [Job(i, need, seconds) for i, (need, seconds) in enumerate(zip(needs, expected_s, strict=True))]
    moments = st.none() | st.integers(0, 80).map(lambda halves: halves / 2)
    times = draw(st.lists(moments, min_size=table.num_nodes, max_size=table.num_nodes))
    deaths = [Death(t, f"node{node}") for node, t in enumerate(times) if t is not None]
    actual = {i: draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])) * job.expected_s for i, job in enumerate(jobs)}
    return VirtualRun(jobs, table, deaths, actual, reporters=[Finished()])


@pytest.mark.full
@SEEDED
@given(runs())
def test_whatever_nodes_die_each_unit_ends_once_and_nothing_is_leased_twice(run: VirtualRun) -> None:
    """The fold of events asserts the rest: no GPU twice, no second start, nothing in quarantine."""
    run.run()
    run.state.check_sum()
    (finished,) = run.reporters
    assert isinstance(finished, Finished)
    assert finished.by_path == Counter(unit.path for unit in run.units)
    assert run.table.leases == () and run.state.leases == {} and run.state.running == {}
    deaths = {death.node: death.t for death in run.deaths}
    spans: dict[str, list[tuple[float, float]]] = {}
    for start in run.runner.starts:
        assert not any(deaths.get(node, start.end_s) < start.end_s for node in start.lease.nodes), "it ran on the dead"
        assert not start.is_lost or start.end_s in [deaths.get(node) for node in start.lease.nodes]
        for gpu_id in start.lease.gpu_ids if not start.lease.budget_bytes else ():
            spans.setdefault(gpu_id, []).append((start.start_s, start.end_s))
    for of_gpu in spans.values():
        assert all(end_s <= next_s for (_, end_s), (next_s, _) in pairwise(sorted(of_gpu)))


@pytest.mark.full
@SEEDED
@given(runs())
def test_no_unit_starves_and_no_makespan_is_under_the_bound(run: VirtualRun) -> None:
    run.run()
    num_lost = Counter(start.number for start in run.runner.starts if start.is_lost)
    for number, unit in enumerate(run.units):
        outcome = run.state.results[unit.path].outcome
        if outcome is Outcome.NOT_RUN:
            assert run.table.why_never(unit.need), "it could have run on the nodes that are left"
        else:
            assert (outcome is Outcome.PASSED) == (num_lost[number] < MAX_LOST)
    # While a unit waits that can run, another one runs: at the latest when all others have ended it has its turn.
    seconds = run.runner.seconds
    last_death_s = max((death.t for death in run.deaths), default=0.0)
    assert run.state.makespan_s <= last_death_s + sum(seconds.values()) + 1e-6
    assert run.state.makespan_s >= bound_s(run) * (1 - 1e-9)


def small_run(suite: int, seed: int = 1, num_units: int = 300) -> VirtualRun:
    rng = random.Random(seed)
    jobs, seconds = SUITES[suite].draw(num_units, rng)
    return VirtualRun(jobs, cluster(4), draw_deaths(1, 4, 500.0, rng), seconds)


@pytest.mark.full
@pytest.mark.parametrize("suite", range(len(SUITES)), ids=[suite.name for suite in SUITES])
def test_the_benchmark_in_small_is_near_its_bound(suite: int) -> None:
    run = small_run(suite).run()
    assert run.state.outcomes == {Outcome.PASSED: 300}
    assert run.state.lost_nodes.keys() == {death.node for death in run.deaths}
    assert any(start.is_lost for start in run.runner.starts)
    assert 1.0 <= run.state.makespan_s / bound_s(run) <= 1.25
    lines = list(report(SUITES[suite], run))
    assert lines[0] == SUITES[suite].name and f"{len(run.queue.decisions_s):,} decisions" in lines[1]


@pytest.mark.full
def test_a_virtual_run_is_the_same_every_time() -> None:
    first, again, other = (small_run(0, seed, num_units=60).run() for seed in (1, 1, 2))
    assert first.runner.starts == again.runner.starts
    assert first.runner.starts != other.runner.starts


@SEEDED
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20))
def test_time_passes_in_order_on_the_virtual_loop(delays_s: list[float]) -> None:
    loop = VirtualLoop()
    ended: list[float] = []

    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        ended.append(loop.time())

    async def all_of_them() -> None:
        await asyncio.gather(*map(sleep, delays_s))

    run_virtually(all_of_them(), loop)
    assert ended == pytest.approx(sorted(delays_s), abs=1e-6)


def test_a_wait_that_never_ends_is_an_error() -> None:
    loop = VirtualLoop()
    with pytest.raises(RuntimeError, match="every task waits"):
        run_virtually(asyncio.Event().wait(), loop)


@pytest.mark.full
def test_the_benchmark_prints_machine_and_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["virtual_cluster.py", "--units", "40", "--nodes", "2", "--deaths", "1"])
    assert main() in (0, 1)
    said = capsys.readouterr().out
    assert "40 units, 2 nodes of 8 GPUs, 1 of which die" in said
    assert said.count("decisions are to be below 1 ms") == len(SUITES)
