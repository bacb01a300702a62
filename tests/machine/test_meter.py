"""Whether a GPU is back at its baseline, and who holds it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machine.inventory import IDLE_MEMORY_BYTES
from harness.machine.meter import GpuProcess, Holder, NoMeter, holder_of, return_to_baseline
from tests.support.fake_meter import FakeMeter

GB = 10**9
OURS = GpuProcess(10, GB, "python test_a.py")
OURS_ENDED = GpuProcess(10, GB, "")
FOREIGN = GpuProcess(20, GB, "python train.py")
UNKNOWN = GpuProcess(30, GB, "")


def test_whose_a_process_is() -> None:
    holders = [holder_of(process, {10}) for process in (OURS, OURS_ENDED, FOREIGN, UNKNOWN)]
    assert holders == [Holder.OURS, Holder.OURS, Holder.FOREIGN, Holder.UNKNOWN]


@pytest.mark.parametrize(
    ("baseline", "now", "processes"),
    [
        (0, 0, []),
        (0, IDLE_MEMORY_BYTES, []),
        (GB, 0, []),
        (None, None, []),
        (None, 5 * GB, []),
        (0, 0, [UNKNOWN]),
    ],
)
def test_back(baseline: int | None, now: int | None, processes: list[GpuProcess]) -> None:
    assert return_to_baseline(baseline, now, processes, {10}) is None


@pytest.mark.parametrize(
    ("baseline", "now", "processes", "holder", "words"),
    [
        (0, 2 * GB, [], Holder.UNKNOWN, "2.0 GB above its baseline, held by no process that the driver lists"),
        (0, IDLE_MEMORY_BYTES + 1, [], Holder.UNKNOWN, "above its baseline"),
        (0, 2 * GB, [UNKNOWN], Holder.UNKNOWN, "pid 30 (not visible from here)"),
        (0, 2 * GB, [OURS, FOREIGN], Holder.OURS, "held by pid 10 (python test_a.py)"),
        (0, 0, [OURS_ENDED], Holder.OURS, "pid 10"),
        (0, 2 * GB, [UNKNOWN, FOREIGN], Holder.FOREIGN, "held by pid 20 (python train.py)"),
        (None, None, [FOREIGN], Holder.FOREIGN, "pid 20"),
        (0, None, [], Holder.UNKNOWN, "can no longer be read"),
    ],
)
def test_still_held(
    baseline: int | None, now: int | None, processes: list[GpuProcess], holder: Holder, words: str
) -> None:
    held = return_to_baseline(baseline, now, processes, {10})
    assert held is not None
    assert held.holder is holder
    assert words in held.reason


@settings(derandomize=True)
@given(st.integers(0, 100 * GB), st.integers(0, 100 * GB), st.integers(0, 10 * GB))
def test_memory_alone_decides_where_no_process_is_listed(baseline: int, now: int, tolerance: int) -> None:
    is_back = return_to_baseline(baseline, now, [], (), tolerance) is None
    assert is_back == (now <= baseline + tolerance)


def test_a_pretended_card_is_back_at_once() -> None:
    meter = NoMeter()
    baseline = meter.used_memory_bytes(["SIM-0"])
    assert baseline == {}
    assert return_to_baseline(baseline.get("SIM-0"), None, meter.processes_on("SIM-0"), ()) is None
    meter.close()


def test_the_fake_shows_what_it_is_told() -> None:
    meter = FakeMeter({"GPU-a": GB}, {"GPU-a": (FOREIGN,)})
    assert meter.used_memory_bytes(["GPU-a", "GPU-b"]) == {"GPU-a": GB}
    assert meter.processes_on("GPU-a") == (FOREIGN,)
    assert meter.processes_on("GPU-b") == ()
    meter.close()
