"""GPUs in quarantine are looked at again, and leased again once they are as they were. Attempts follow scripts."""

import asyncio
from pathlib import Path

import pytest

from harness.machine.gpu_health import GpuProcess
from harness.runner import dispatcher, events
from harness.runner.need import Need
from harness.runner.schedule.leases import LeaseTable
from harness.runner.units import Outcome
from tests.runner.scripted_run import GPU_0, ScriptedRun
from tests.support.fake_meter import FakeMeter
from tests.support.packing_cases import EIGHT
from tests.support.scripted_attempts import Script

FOREVER = 10**9
GB = 10**9
LIMITS = {"poll_s": 0.0, "wait_s": 0.0}
TRAIN = GpuProcess(7, GB, "python train.py")


class Visited(FakeMeter):
    """Shows a foreign process on the first GPU from the second question on, for some questions."""

    num_asked = 0
    num_visits = 3

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        if gpu_id != GPU_0:
            return ()
        self.num_asked += 1
        return (TRAIN,) if 1 < self.num_asked <= 1 + self.num_visits else ()


@pytest.mark.timeout(120)
def test_a_gpu_that_its_visitor_has_left_is_leased_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "LOOK_AGAIN_S", 0.0)
    run = ScriptedRun(tmp_path, [1, 1, 1], {1: Script(num_steps=FOREVER)}, meter=Visited(), card_limits=LIMITS)
    run.acts = [
        (lambda run, _: "test_2.py" in run.state.results, lambda dispatcher: dispatcher.request_cancel("SIGINT")),
    ]
    run.run().assert_sound()
    assert run.outcomes == [Outcome.PASSED, Outcome.INTERRUPTED, Outcome.PASSED]
    assert [event.gpu_id for event in run.of(events.GpuQuarantined)] == [GPU_0]
    assert [event.gpu_id for event in run.of(events.GpuReadmitted)] == [GPU_0]
    assert run.state.quarantined == {}
    assert run.results[2].gpu_ids == (GPU_0,)


def test_a_gpu_that_is_still_held_or_fuller_than_before_stays_away(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0}, {})
    run = ScriptedRun(tmp_path, [1], num_gpus=1, meter=Visited({GPU_0: 0}), card_limits=LIMITS).run()
    runner = run.runner
    assert runner.away == {GPU_0: 0}
    object.__setattr__(runner.watch, "meter", meter)
    meter.processes[GPU_0] = (TRAIN,)
    assert asyncio.run(runner.take_back()) == []
    meter.processes[GPU_0], meter.used_bytes[GPU_0] = (), GB
    assert asyncio.run(runner.take_back()) == []
    meter.used_bytes[GPU_0] = 10**7
    assert asyncio.run(runner.take_back()) == [GPU_0]
    assert asyncio.run(runner.take_back()) == []


def test_a_table_leases_a_readmitted_gpu_once_it_is_given_back() -> None:
    table = LeaseTable(EIGHT, cpu_units=1)
    lease = table.lease(Need(1))
    assert lease is not None
    (gpu_id,) = lease.gpu_ids
    table.quarantine(gpu_id)
    table.readmit(gpu_id)
    assert gpu_id not in [gpu.gpu_id for gpu in table.free_gpus]
    table.give_back(lease)
    assert table.lease(Need(8)) is not None
