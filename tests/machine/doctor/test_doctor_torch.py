"""Why torch finds no GPU where the driver has some: its own words, and the remedy that follows from them."""

import json
from dataclasses import replace

import pytest

from harness.doctor.gpus import check_torch, read_torch
from harness.doctor.host import Answer
from harness.machine.findings import Severity
from tests.machine.doctor.test_doctor_gpus import CUDA_TORCH, health, health_of
from tests.support.finding_checks import severities, sound

COUNT = "CUDA initialization: Unexpected error from cudaGetDeviceCount(). "


@pytest.mark.parametrize(
    ("warning", "capabilities", "remedy"),
    [
        (f"{COUNT}Error 802: system not yet initialized", None, "nvidia-fabricmanager"),
        (f"{COUNT}Error 46: all CUDA-capable devices are busy or unavailable", None, "nvidia-smi -c 0"),
        (f"{COUNT}Error 999: unknown error", "all", "nvidia_uvm"),
        ("CUDA initialization: Found no NVIDIA driver on your system.", None, "NVIDIA_DRIVER_CAPABILITIES"),
        ("", "utility", "NVIDIA_DRIVER_CAPABILITIES"),
        ("", "compute,utility", "update the driver"),
        ("CUDA initialization: The NVIDIA driver on your system is too old", None, "update the driver"),
    ],
)
def test_the_remedy_for_a_torch_without_gpus_follows_its_own_words(
    warning: str, capabilities: str | None, remedy: str
) -> None:
    blind = replace(CUDA_TORCH, is_available=False, warning=warning)
    (finding,) = sound(check_torch(blind, health(health_of()), num_usable=1, capabilities=capabilities))
    assert finding.severity is Severity.BROKEN
    assert remedy in finding.remedy
    assert warning in finding.measured


def test_a_gpu_that_has_not_joined_its_switches_explains_a_blind_torch_and_is_no_alarm_by_itself() -> None:
    apart = health(health_of(fabric_problem="it has not been started"))
    (finding,) = sound(check_torch(replace(CUDA_TORCH, is_available=False), apart, num_usable=1))
    assert "GPU 0 has not joined its NVSwitches: it has not been started" in finding.measured
    assert "nvidia-fabricmanager" in finding.remedy
    assert severities(check_torch(CUDA_TORCH, apart, num_usable=1)) == {"torch": "fine"}


def test_torchs_own_warning_is_read() -> None:
    line = json.dumps({"is_available": False, "warning": f"{COUNT}Error 802: system not yet initialized", "archs": []})
    assert "Error 802" in read_torch(Answer('{"version": "2.11.0", "cuda": "13.0"}\n' + line)).warning
