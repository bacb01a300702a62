"""Why a GPU is not back at its baseline, and who holds it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machine.gpu_health import GpuProcess, Meter, why_not_back
from harness.machine.inventory import IDLE_MEMORY_BYTES

GB = 10**9
FOREIGN = GpuProcess(20, GB, "python train.py")
UNKNOWN = GpuProcess(30, GB, "")


@pytest.mark.parametrize(
    ("baseline", "now", "processes", "words"),
    [
        (0, 0, [], ""),
        (0, IDLE_MEMORY_BYTES, [], ""),
        (GB, 0, [], ""),
        (None, None, [], ""),
        (None, 5 * GB, [], ""),
        (0, 0, [UNKNOWN], ""),
        (0, 2 * GB, [], "2.0 GB above its baseline, held by no process that the driver lists"),
        (0, IDLE_MEMORY_BYTES + 1, [], "above its baseline"),
        (0, 2 * GB, [UNKNOWN], "pid 30 (not visible from here)"),
        (0, 2 * GB, [UNKNOWN, FOREIGN], "held by pid 20 (python train.py)"),
        (None, None, [FOREIGN], "pid 20"),
        (0, None, [], "can no longer be read"),
    ],
)
def test_a_gpu_is_back_or_held(baseline: int | None, now: int | None, processes: list[GpuProcess], words: str) -> None:
    why = why_not_back(baseline, now, processes, IDLE_MEMORY_BYTES)
    assert words in why
    assert bool(words) is bool(why)


@settings(derandomize=True)
@given(st.integers(0, 100 * GB), st.integers(0, 100 * GB), st.integers(0, 10 * GB))
def test_memory_alone_decides_where_no_process_is_listed(baseline: int, now: int, tolerance: int) -> None:
    assert (not why_not_back(baseline, now, [], tolerance)) == (now <= baseline + tolerance)


def test_a_pretended_gpu_is_back_at_once() -> None:
    meter = Meter()
    assert meter.used_memory_bytes(["SIM-0"]) == {}
    assert why_not_back(None, None, meter.processes_on("SIM-0"), 0) == ""
    meter.close()
