"""A dispatcher over scripted attempts: everything of a run but processes, GPUs and time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.machine.gpu_health import Meter
from harness.machine.gpu_watch import GpuWatch
from harness.machine.inventory import Gpu, Inventory
from harness.process.claims import Claims
from harness.process.invocation import Invocation
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.runner import events
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.collection.collect import Collected
from harness.runner.dispatcher import Dispatcher, Recorder
from harness.runner.need import Need
from harness.runner.options import RunOptions
from harness.runner.records.stats import RunState
from harness.runner.reruns.retries import Retries
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Queue
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.fake_clock import FakeClock
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import Script, ScriptedAttempts, ScriptedSuite

GPU_0, GPU_1 = "ID-0", "ID-1"
Act = Callable[[Dispatcher], None]
When = Callable[["ScriptedRun", int], bool]
"""Whether a moment has come, of the run and the number of turns its loop has had."""


def begun(number: int) -> When:
    """Once the attempt of a unit has begun."""
    return lambda run, _: ("begins", number) in run.attempts.log


def told(kind: type[events.Event]) -> When:
    """Once there has been such an event."""
    return lambda run, _: bool(run.of(kind))


def after(num_turns: int) -> When:
    """After so many turns."""
    return lambda _, turn: turn >= num_turns


class Kept:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def on_event(self, event: events.Event, state: RunState) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class ScriptedRun:
    """One run of units with these needs, each following the script that `scripts` has for its number."""

    directory: Path
    needs: Sequence[int | Need | Unit]
    scripts: Mapping[int, Script] = field(default_factory=dict)
    num_gpus: int = 2
    has_real_gpus: bool = False
    """Whether the cores of this machine are divided among its GPUs."""
    cpu_units: int = 2
    meter: Meter = field(default_factory=FakeMeter)
    acts: Sequence[tuple[When, Act]] = ()
    """What is done to the dispatcher, one after the other, each once its moment has come."""
    options: dict[str, Any] = field(default_factory=dict)
    rootdir: Path | None = None
    stops_after: int = 0
    """See `ScriptedSuite`."""
    pytest_args: tuple[str, ...] = ()
    ephemeral: tuple[int, int] = field(default_factory=read_ephemeral_range)
    card_limits: dict[str, float] = field(default_factory=lambda: {"poll_s": 0.0, "wait_s": 0.0, "answer_s": 5.0})

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.state = RunState()
        self.kept = Kept()
        self.attempts = ScriptedAttempts(lambda number: self.scripts.get(number, Script()))
        self.suite = ScriptedSuite(self.stops_after)
        self.units = tuple(_unit(number, need) for number, need in enumerate(self.needs))
        gpus = tuple(Gpu(f"ID-{index}", index, "A", 80.0) for index in range(self.num_gpus))
        self.table = LeaseTable(Inventory(gpus), self.cpu_units)
        self.recorder = Recorder(self.state, [self.kept], self.clock)
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir(parents=True)

    def run(self) -> "ScriptedRun":
        """Run it to its end; itself."""
        asyncio.run(self._run())
        return self

    async def _run(self) -> None:
        invocation = Invocation(self.directory, {"HOME": "/h", "RAY_ADDRESS": "x"})
        with Claims() as claims:
            self.runner = UnitRunner(
                options=RunOptions(invocation, self.directory, cpu_units=self.cpu_units, **self.options),
                collected=Collected(self.units, self.rootdir or self.directory, self.pytest_args),
                attempts=self.attempts,  # type: ignore[arg-type]
                suite=self.suite,  # type: ignore[arg-type]
                watch=GpuWatch(self.meter, self.clock, (), **self.card_limits),
                ports=PortBlocks(claims, self.ephemeral),
                run_id="run",
                num_gpus=self.num_gpus if self.has_real_gpus else 0,
                run_directory=self.directory / "run",
                scratch=self.scratch,
                retries=Retries(self.options.get("retries", 0)),
                t=self.recorder.t,
            )
            queue = Queue(Job(n, unit.need, 1.0) for n, unit in enumerate(self.units) if unit.can_run)
            dispatcher = Dispatcher(self.units, queue, self.table, self.runner, self.recorder)
            gpus = tuple(str(gpu) for gpu in self.table.free_gpus)
            self.recorder.take(events.RunStarted(0.0, "run", str(self.directory), gpus, (), (), "none", self.cpu_units))
            zeros = (0.0,) * len(self.units)
            self.recorder.take(events.CollectionFinished(0.0, self.units, zeros, 0.0, 0.0, 0.0))
            actor = asyncio.create_task(self._act(dispatcher))
            try:
                await dispatcher.run()
            finally:
                actor.cancel()
                others = asyncio.all_tasks() - {asyncio.current_task(), actor}
                self.tasks_left = [task for task in others if not task.done()]

    async def _act(self, dispatcher: Dispatcher) -> None:
        turn = 0
        for when, act in self.acts:
            while not when(self, turn):
                await asyncio.sleep(0)
                turn += 1
            act(dispatcher)

    @property
    def results(self) -> dict[int, UnitResult]:
        """Results by the number of the unit."""
        return {number: self.state.results[unit.path] for number, unit in enumerate(self.units)}

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes in the order of the units."""
        return [self.state.results[unit.path].outcome for unit in self.units]

    def of(self, kind: type[events.Event]) -> list[Any]:
        """Events of one kind, in order."""
        return [event for event in self.kept.events if isinstance(event, kind)]

    def assert_sound(self) -> None:
        """Each unit one outcome, nothing left behind: no lease, no task, no temporary directory."""
        self.state.check_sum()
        finished = Counter(event.result.unit.path for event in self.of(events.UnitFinished))
        assert finished == Counter(unit.path for unit in self.units)
        assert self.table.leases == ()
        assert self.state.leases == {}
        assert self.state.running == {}
        assert self.tasks_left == []
        assert self.attempts.log.count(("begins", 0)) <= 1
        assert list(self.scratch.iterdir()) == []


def _unit(number: int, need: int | Need | Unit) -> Unit:
    if isinstance(need, Unit):
        return need
    return Unit(f"test_{number}.py", Need(gpus=need) if isinstance(need, int) else need, NeedSource.IMPORT)
