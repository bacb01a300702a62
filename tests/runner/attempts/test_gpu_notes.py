"""What a result and the notes of a run say about the GPUs of a failed attempt."""

from pathlib import Path

from harness.machine.gpu_health import GpuProcess
from harness.runner import events
from harness.runner.attempts.gpu_checks import broken_by, with_reason, with_xids
from harness.runner.need import Need
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.runner.scripted_run import ScriptedRun
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import Script

GB = 10**9
GPU_0 = "ID-0"


def result(outcome: Outcome, directory: Path | None = None, reason: str = "") -> UnitResult:
    return UnitResult(Unit("test_a.py", Need(), NeedSource.IMPORT), outcome, reason, directory=str(directory or ""))


def test_errors_of_the_driver_are_part_of_a_failure_and_only_fatal_ones_break_a_gpu() -> None:
    xids = {"GPU-a": (31,), "GPU-b": (13, 79)}
    failed = with_xids(result(Outcome.CRASHED, reason="SIGABRT"), xids)
    assert failed.reason == (
        "SIGABRT; the driver reported meanwhile GPU-a: Xid 31; GPU-b: Xid 13, Xid 79 (it has fallen off the bus)"
    )
    assert with_xids(result(Outcome.PASSED), xids).reason == ""
    assert broken_by(xids) == {"GPU-b": "the driver reported Xid 79 (it has fallen off the bus)"}


def test_another_user_of_a_gpu_is_part_of_a_failure_alone() -> None:
    held = {"GPU-a": "1.0 GB above its baseline"}
    assert with_reason(result(Outcome.FAILED), "used ({})", held).reason == "used (GPU-a: 1.0 GB above its baseline)"
    assert with_reason(result(Outcome.PASSED), "used ({})", held).reason == ""
    assert with_reason(result(Outcome.FAILED), "used ({})", {}).reason == ""


def test_a_failed_file_names_the_program_that_came_to_its_gpu(tmp_path: Path) -> None:
    class Later(FakeMeter):
        num_asked = 0

        def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
            self.num_asked += 1
            return (GpuProcess(7, GB, "python train.py"),) if self.num_asked > 1 else ()

    limits = {"poll_s": 0.0, "wait_s": 0.0}
    failing = {0: Script(exit_code=1, report=())}
    run = ScriptedRun(tmp_path, [1], failing, meter=Later({GPU_0: 0}), num_gpus=1, card_limits=limits).run()
    (finished,) = run.of(events.UnitFinished)
    assert "something else may have used its GPUs meanwhile" in finished.result.reason
    assert "pid 7 (python train.py)" in finished.result.reason


def test_errors_of_the_driver_reach_the_result_and_the_table(tmp_path: Path) -> None:
    class Breaks(FakeMeter):
        num_asked = 0

        def new_xids(self, gpu_id: str) -> tuple[int, ...]:
            self.num_asked += 1
            return (79,) if self.num_asked == 2 else ()

    run = ScriptedRun(tmp_path, [1], meter=Breaks({GPU_0: 0}), num_gpus=1).run()
    (held,) = run.of(events.GpuQuarantined)
    assert held.reason == "the driver reported Xid 79 (it has fallen off the bus)"
    assert run.runner.away == {}, "nobody looks at it again"
