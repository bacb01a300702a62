"""A run over scripted agents that die at any moment, repeat themselves and report what is not theirs.

Real sockets, the real run's side, the real dispatcher; no process. And the whole command on a suite of verl's shape.
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation
from harness.core.need import Need
from harness.machine.gpu_watch import GpuWatch
from harness.machine.meter import NoMeter
from harness.process.claims import Claims
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.render.sentences import sentences
from harness.runner import events
from harness.runner.attempts.unit_run import MAX_LOST, UnitRunner
from harness.runner.cluster.channel import new_key
from harness.runner.cluster.inventory import inventory_of
from harness.runner.cluster.nodes import Cluster
from harness.runner.collection.collect import Collected
from harness.runner.dispatcher import Dispatcher, Recorder
from harness.runner.options import RunOptions
from harness.runner.records.run_record import read_run_record
from harness.runner.records.stats import RunState, exit_code
from harness.runner.schedule.first_fit import Job, Queue
from harness.runner.schedule.leases import LeaseTable
from harness.runner.units import NeedSource, Outcome, Unit
from tests.runner.scripted_run import Kept
from tests.support.fake_clock import FakeClock
from tests.support.scripted_agents import AgentPlan, ScriptedAgent

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 120.0


class _Canceller:
    """A reporter that has the run cancelled after so many starts, and killed at the next event but one."""

    def __init__(self, dispatcher: Dispatcher, after: int) -> None:
        self._dispatcher, self._left, self._num_since = dispatcher, after, 0

    def on_event(self, event: events.Event, state: RunState) -> None:
        self._left -= isinstance(event, events.AttemptStarted)
        if self._left < 0:
            self._num_since += 1
            if self._num_since in (1, 3):
                self._dispatcher.request_cancel("SIGINT")

    def close(self) -> None:
        """Nothing is held."""


class ClusterRun:
    """One run of units with these needs on these agents; units whose number is in `failing` fail."""

    def __init__(
        self, directory: Path, needs: Sequence[int], plans: Sequence[AgentPlan], failing: frozenset[int] = frozenset()
    ) -> None:
        everywhere: list[str] = []
        self.agents = [ScriptedAgent(plan, failing.__contains__, everywhere) for plan in plans]
        self.units = tuple(Unit(f"test_{n}.py", Need(gpus), NeedSource.AST) for n, gpus in enumerate(needs))
        self.state, self.kept, self.failing = RunState(), Kept(), failing
        self.directory = directory
        self.cancels_after: int | None = None
        """Number of starts after which the run is cancelled, twice as many events later at once; None for never."""
        self.options = RunOptions(Invocation(directory, {}), directory, cpu_units=2)

    def run(self) -> "ClusterRun":
        """Run it to its end; itself."""
        asyncio.run(self._run())
        return self

    async def _run(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self._serve_and_run()

    async def _serve_and_run(self) -> None:
        key = new_key()
        cluster = Cluster(self.options, key)
        port = await cluster.listen("127.0.0.1", 0)
        serving = [asyncio.create_task(agent.serve(port, key)) for agent in self.agents]
        try:
            await cluster.wait_for(len(self.agents), 60)
            with Claims() as claims:
                await self._dispatch(cluster, claims)
        finally:
            await cluster.close()
            await asyncio.gather(*serving)
        assert [task for task in asyncio.all_tasks() - {asyncio.current_task()} if not task.done()] == []

    async def _dispatch(self, cluster: Cluster, claims: Claims) -> None:
        clock = FakeClock()
        recorder = Recorder(self.state, [self.kept], clock)
        table = LeaseTable(inventory_of(cluster), self.options.cpu_units, nodes=tuple(cluster.nodes))
        cluster.kept_in = self.directory / "run"
        runner = UnitRunner(
            options=self.options,
            collected=Collected(self.units, self.directory, ()),
            attempts=cluster.host(table.fresh().lease(Need())).attempts,  # type: ignore[arg-type]
            host_of=cluster.host,
            watch=GpuWatch(NoMeter(), clock),
            ports=PortBlocks(claims, read_ephemeral_range()),
            run_id="run",
            run_directory=cluster.kept_in,
            scratch=self.directory / "scratch",
            t=recorder.t,
        )
        queue = Queue(Job(n, unit.need, 1.0) for n, unit in enumerate(self.units))
        dispatcher = Dispatcher(self.units, queue, table, runner, recorder)
        cluster.report_losses(lambda node, why: dispatcher.post(events.NodeLost(recorder.t(), node, why)))
        gpus = tuple(str(gpu) for gpu in table.free_gpus)
        recorder.take(events.RunStarted(0.0, "run", "", gpus, (), (), "none", table.cpu_units))
        recorder.take(events.CollectionFinished(0.0, self.units, (0.0,) * len(self.units), 0.0, 0.0, 0.0))
        if self.cancels_after is not None:
            recorder.add(_Canceller(dispatcher, self.cancels_after))
        await dispatcher.run()
        assert table.leases == ()

    def of(self, kind: type[events.Event]) -> list[Any]:
        """Events of one kind, in order."""
        return [event for event in self.kept.events if isinstance(event, kind)]

    def assert_sound(self) -> None:
        """Each unit has its one, right outcome; nothing of a lost node is leased again."""
        self.state.check_sum()
        assert len(self.of(events.UnitFinished)) == len(self.units)
        assert self.state.leases == {}
        assert self.state.running == {}
        for number, unit in enumerate(self.units):
            result = self.state.results[unit.path]
            num_lost = sum(event.path == unit.path for event in self.of(events.AttemptLost))
            right = Outcome.FAILED if number in self.failing else Outcome.PASSED
            if result.outcome is Outcome.SUPERVISOR_LOST:
                assert num_lost == MAX_LOST - 1
            elif result.outcome is Outcome.NOT_RUN:
                assert result.for_want_of_gpus
                widest = max((a.plan.num_gpus for a in self.agents if a.node not in self.state.lost_nodes), default=-1)
                assert widest < unit.need.gpus
            else:
                assert result.outcome is right
                ran_on = {agent.node for agent in self.agents for marker in agent.given if _number(marker) == number}
                assert ran_on
        lost: set[str] = set()
        late: set[str] = set()
        for event in self.kept.events:
            if isinstance(event, events.NodeLost):
                lost.add(event.node)
            if isinstance(event, events.AttemptStarted) and any(_node(gpu_id) in lost for gpu_id in event.gpu_ids):
                late.add(event.path)  # leased before the node was lost: it is lost at once
            if isinstance(event, events.AttemptLost):
                late.discard(event.path)
            if isinstance(event, events.UnitFinished) and event.result.outcome is not Outcome.SUPERVISOR_LOST:
                assert event.result.unit.path not in late


def _node(gpu_id: str) -> str:
    return gpu_id.partition("-")[0]


def _number(marker: str) -> int:
    return int(marker.partition("-")[2].partition("+")[0].partition("-")[0])


plans = st.builds(
    AgentPlan,
    dies_after=st.none() | st.integers(0, 12),
    num_turns=st.integers(0, 20),
    repeats=st.booleans(),
    forges=st.booleans(),
)


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(
    needs=st.lists(st.integers(0, 2), min_size=1, max_size=10),
    agents=st.lists(plans, min_size=1, max_size=4),
    failing=st.frozensets(st.integers(0, 9)),
)
def test_no_outcome_is_lost_or_counted_twice(
    needs: list[int], agents: list[AgentPlan], failing: frozenset[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = ClusterRun(tmp_path_factory.mktemp("run"), needs, agents, failing).run()
    run.assert_sound()
    died = {agent.node for agent in run.agents if agent.is_dead}
    assert set(run.state.lost_nodes) <= died, "a node that lives is never lost"


@pytest.mark.full
@settings(max_examples=20, deadline=None)
@given(agents=st.lists(plans, min_size=1, max_size=3), after=st.integers(0, 5))
def test_a_cancelled_run_ends_with_an_outcome_for_each_unit(
    agents: list[AgentPlan], after: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = ClusterRun(tmp_path_factory.mktemp("run"), [1] * 8, agents)
    run.cancels_after = after
    run.run()
    run.state.check_sum()
    assert run.state.leases == {}
    assert run.state.running == {}


def test_units_of_a_lost_node_run_on_another(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path, [2, 2, 2, 2], [AgentPlan(dies_after=0), AgentPlan()]).run()
    run.assert_sound()
    assert set(run.state.outcomes) == {Outcome.PASSED}
    (lost,) = run.of(events.AttemptLost)
    assert run.state.results[lost.path].directory.endswith("+1"), "the files of the lost attempt are kept beside"
    assert [event.node for event in run.of(events.NodeLost)] == [lost.node]
    assert exit_code(run.state, allow_missing_gpus=False) is ExitCode.GPU_QUARANTINED


@pytest.mark.full
def test_the_record_and_the_summary_name_a_lost_node(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path, [1], [AgentPlan(dies_after=0), AgentPlan(dies_after=0)]).run()
    (tmp_path / "events.jsonl").write_text("".join(map("{}\n".format, map(events.to_json_line, run.kept.events))))
    record = read_run_record(tmp_path / "events.jsonl")
    assert record.num_unreadable == 0
    lost = [note for note in record.notes if " was lost after " in note]
    assert [note.split()[0] for note in lost] == [event.node for event in run.of(events.NodeLost)]
    said = [sentence.label for event in run.kept.events for sentence in sentences(event, run.state)]
    assert said.count("NODE LOST") == len(lost) == 2
    assert said.count("queued again") == len(run.of(events.AttemptLost))


@pytest.mark.full
def test_without_a_node_left_units_are_not_run(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path, [0, 1, 2], [AgentPlan(dies_after=0)]).run()
    run.assert_sound()
    assert set(run.state.outcomes) == {Outcome.NOT_RUN}
    assert "every node of this run is lost" in run.state.results["test_0.py"].reason
    assert exit_code(run.state, allow_missing_gpus=False) is ExitCode.UNITS_NOT_RUN
    assert exit_code(run.state, allow_missing_gpus=True) is ExitCode.GPU_QUARANTINED


@pytest.mark.full
def test_a_unit_that_takes_nodes_with_it_is_given_up(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path, [2], [AgentPlan(dies_after=0)] * MAX_LOST + [AgentPlan()]).run()
    (result,) = run.state.results.values()
    lost = sorted(run.state.lost_nodes)
    if len(lost) == MAX_LOST:
        assert result.outcome is Outcome.SUPERVISOR_LOST
        assert "as were all nodes before it" in result.reason
    run.assert_sound()


def test_what_a_node_repeats_or_forges_changes_nothing(tmp_path: Path) -> None:
    liars = [AgentPlan(repeats=True, forges=True, num_turns=turns) for turns in (0, 9)]
    run = ClusterRun(tmp_path, [1] * 8, liars, frozenset({1, 3})).run()
    run.assert_sound()
    assert run.state.outcomes == {Outcome.PASSED: 6, Outcome.FAILED: 2}
    for result in run.state.results.values():
        assert "late" not in Path(result.directory, "report.jsonl").read_text("utf-8")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_node_killed_in_a_suite_of_verls_shape_changes_no_outcome(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "lost_nodes.py"), "--trials", "3"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "3 trials, 0 of them wrong" in done.stdout
    assert "killed the agent" in done.stdout
