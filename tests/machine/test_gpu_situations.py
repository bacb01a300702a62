"""GPUs in odd situations through the pretended driver: with a display, under WSL or MPS, lost, insisted on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bits.errors import InventoryError
from harness.machine.gpu_selection import UNOPENED_NOTE
from harness.process.claims import Claims
from tests.machine.test_gpus import ids, reasons, run_child
from tests.support.foreign_claims import held_by_another_user
from tests.support.nvml_stub.build import Instance, Process, StubGpu, machine_of
from tests.support.nvml_stub.driver import Driver
from tests.support.suite_runs import stub_gpus


@pytest.fixture(autouse=True)
def _turn() -> Iterator[None]:
    with stub_gpus.held():
        yield


INVALID_ARGUMENT, NO_PERMISSION, GPU_IS_LOST, UNKNOWN = 2, 4, 15, 999
NO_SUCH_PID = 2**31
OPTIONAL = [
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetRemappedRows",
]


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, UNKNOWN])
def test_an_optional_question_that_is_refused_never_loses_a_gpu(driver: Driver, code: int) -> None:
    """As drivers refuse them for MIG instances, and sandboxes for everything."""
    for function in set(OPTIONAL) - {"nvmlDeviceGetMemoryInfo_v2"}:  # the older question counts the driver's reserve
        inventory = driver.read_inventory(machine_of(StubGpu(), failures=[(function, -1, code)]))
        assert ids(inventory) == ["GPU-a"], function


@pytest.mark.parametrize("function", OPTIONAL)
def test_a_gpu_that_is_lost_while_it_is_asked_is_left_out(driver: Driver, function: str) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(), StubGpu(), failures=[(function, 0, GPU_IS_LOST)]))
    assert (ids(inventory), reasons(inventory)) == (["GPU-b"], {0: "cannot be read: GPU is lost"})


def test_memory_that_cannot_be_asked_for_in_any_way_leaves_a_gpu_out(driver: Driver) -> None:
    failures = [(f"nvmlDeviceGetMemoryInfo{version}", 0, UNKNOWN) for version in ("", "_v2")]
    assert reasons(driver.read_inventory(machine_of(StubGpu(), failures=failures))) == {
        0: "cannot be read: Unknown Error"
    }


# ---- GPUs that are never quite idle ----


@pytest.mark.parametrize("text", ["as-is:1", "as-is:1,", "as-is:GPU-b"])
def test_a_busy_gpu_is_taken_as_it_is_where_the_user_insists(driver: Driver, text: str) -> None:
    machine = machine_of(StubGpu(), StubGpu(used_mb=9000, processes=[Process(NO_SUCH_PID)]))
    (gpu,) = driver.read_inventory(machine, text).gpus
    assert (gpu.gpu_id, gpu.is_as_is, gpu.used_bytes) == ("GPU-b", True, 9 * 10**9)
    with pytest.raises(InventoryError, match="compute mode"):
        driver.read_inventory(machine_of(StubGpu(), StubGpu(compute_mode=2)), text)
    with Claims() as other_run, pytest.raises(InventoryError, match="another rlharness run"):
        assert other_run.try_claim("gpu-GPU-b")
        driver.read_inventory(machine, text, claims=True)


def test_the_refusal_of_a_busy_gpu_names_the_way_to_insist(driver: Driver) -> None:
    with pytest.raises(InventoryError) as error:
        driver.read_inventory(machine_of(StubGpu(used_mb=9000)), "0,")
    assert "--gpus as-is:0" in error.value.remedy


def test_a_gpu_with_an_active_display_may_hold_what_no_process_is_charged_for(driver: Driver) -> None:
    screen = Process(NO_SUCH_PID, used_mb=230, kind="graphics")
    for used_mb, expected in ((310, ["GPU-a"]), (2230, ["GPU-a"]), (2231, [])):
        machine = machine_of(StubGpu(used_mb=used_mb, display=True, processes=[screen]))
        assert ids(driver.read_inventory(machine)) == expected
    assert not driver.read_inventory(machine_of(StubGpu(used_mb=310, processes=[screen]))).gpus


WSL = """
import sys
from harness.machine import gpus, nvml
nvml.WSL_DEVICE = sys.executable
print([gpu.gpu_id for gpu in gpus.read_inventory("auto", {}).gpus])
"""


def test_under_wsl_the_memory_of_windows_is_no_program_of_ours(nvml_library: Path, tmp_path: Path) -> None:
    machine_of(StubGpu(used_mb=1200), StubGpu(used_mb=2100)).write(tmp_path / "machine")
    assert run_child(WSL, nvml_library.parent, tmp_path / "machine").strip() == "['GPU-a']"


def test_the_server_of_mps_holds_no_gpu_and_its_clients_do(driver: Driver, tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", server)
    process = subprocess.Popen([str(server), "600"])
    try:
        idle = StubGpu(used_mb=30, processes=[Process(process.pid, 30)])
        assert ids(driver.read_inventory(machine_of(idle))) == ["GPU-a"]
        assert driver.processes_on("GPU-a") == ()
        served = StubGpu(used_mb=30, processes=[Process(process.pid, 30), Process(os.getpid(), 0, "mps")])
        assert f"held by pid {os.getpid()}" in reasons(driver.read_inventory(machine_of(served)))[0]
    finally:
        process.kill()
        process.wait()


def test_a_gpu_that_is_a_numa_node_has_its_total_memory(driver: Driver) -> None:
    """GH200: what is in use there proves nothing, and a test that needs memory_gb finds it."""
    (gpu,) = driver.read_inventory(machine_of(StubGpu(total_mb=480_000, used_mb=9000, numa_node=1))).gpus
    assert (gpu.memory_gb, gpu.used_bytes) == (480.0, 0)
    assert driver.used_memory_bytes(("GPU-a",)) == {}


# ---- numbers ----


@pytest.mark.parametrize("code", [GPU_IS_LOST, NO_PERMISSION])
def test_gpus_that_cannot_be_opened_are_not_counted_as_cuda_does_not_count_them(driver: Driver, code: int) -> None:
    failures = [("nvmlDeviceGetHandleByIndex_v2", 1, code)]
    machine = machine_of(StubGpu(), StubGpu(), StubGpu(), StubGpu(), failures=failures)
    inventory = driver.read_inventory(machine)
    assert [(gpu.gpu_id, gpu.number) for gpu in inventory.gpus] == [("GPU-a", 0), ("GPU-c", 1), ("GPU-d", 2)]
    inventory = driver.read_inventory(machine, "auto", {"CUDA_VISIBLE_DEVICES": "1,2"})
    assert ids(inventory) == ["GPU-c", "GPU-d"]
    assert UNOPENED_NOTE in inventory.note
    assert UNOPENED_NOTE not in driver.read_inventory(machine, "auto", {"CUDA_VISIBLE_DEVICES": "GPU-c"}).note


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, NO_PERMISSION])
def test_an_instance_that_cannot_be_had_loses_none_of_the_others(driver: Driver, code: int) -> None:
    instances = [Instance("MIG-x", 1, 0), Instance("MIG-y", 2, 0), Instance("MIG-z", 3, 0)]
    codes = {1: code} | dict.fromkeys(range(3, 7), code)
    gpu = StubGpu(mig_mode=1, instances=instances, part_codes=codes)
    inventory = driver.read_inventory(machine_of(gpu, failures=[("nvmlDeviceGetNumaNodeId", 0, INVALID_ARGUMENT)]))
    assert ids(inventory) == ["MIG-x", "MIG-z"]


# ---- one start of the driver ----

WAKING = """
import os
from harness.machine.gpus import read_machine, read_with_meter
from harness.process.claims import Claims
with Claims() as claims:
    {}
"""


@pytest.mark.parametrize(
    ("call", "num_started"),
    [
        ('read_with_meter("auto", {}, claims)[1].used_memory_bytes(("GPU-a",))', 1),
        ("read_machine({})", 1),
        ('read_with_meter("none", {}, claims), read_with_meter("sim:2", {}, claims)', 0),
    ],
)
def test_the_driver_starts_once(nvml_library: Path, tmp_path: Path, call: str, num_started: int) -> None:
    """Each start wakes every GPU without persistence mode, which takes half a minute for eight."""
    machine_of(StubGpu()).write(tmp_path / "machine")
    (tmp_path / "machine.woken").touch()
    run_child(WAKING.format(call), nvml_library.parent, tmp_path / "machine")
    assert (tmp_path / "machine.woken").stat().st_size == num_started


# ---- leases within leases ----


def test_a_run_within_a_lease_takes_its_gpus_as_they_are_and_shares_them_out(driver: Driver) -> None:
    machine = machine_of(StubGpu(used_mb=9000, processes=[Process(os.getpid())]), StubGpu())
    within = {"RLHARNESS_LEASE": "run-0001 GPU-a"}
    with Claims() as outer:
        assert outer.try_claim("gpu-GPU-a")
        inventory = driver.read_inventory(machine, "auto", within, claims=True)
        assert [(gpu.gpu_id, gpu.is_as_is) for gpu in inventory.gpus] == [("GPU-a", True), ("GPU-b", False)]
        elsewhere = driver.read_inventory(machine, "auto", {"RLHARNESS_LEASE": "run-0002 GPU-b"}, claims=True)
        assert ids(elsewhere) == ["GPU-b"]
        with Claims() as sibling:
            assert sibling.try_claim("gpu-GPU-a-under-run-0001")
            assert "another rlharness run" in reasons(driver.read_inventory(machine, "auto", within, claims=True))[0]


def test_a_lease_that_is_over_means_nothing(driver: Driver) -> None:
    code = "run-0001 GPU-a"
    with Claims() as other:
        assert other.try_claim("gpu-GPU-a-under-run-0001")
        inventory = driver.read_inventory(machine_of(StubGpu()), "auto", {"RLHARNESS_LEASE": code}, claims=True)
        with pytest.raises(InventoryError, match="1 of the 1 GPUs"):
            driver.read_inventory(machine_of(StubGpu()), "2", {"RLHARNESS_LEASE": code}, claims=True)
    assert ids(inventory) == ["GPU-a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("own_cache")
def test_a_run_within_a_lease_has_its_gpu_though_another_user_holds_the_name(driver: Driver) -> None:
    machine = machine_of(StubGpu())
    with held_by_another_user("gpu-GPU-a", listens=False), Claims() as outer:
        assert outer.try_claim_past("gpu-GPU-a")
        assert ids(driver.read_inventory(machine, "auto", {"RLHARNESS_LEASE": "run-0001 GPU-a"}, claims=True))


# ---- errors that the driver reports ----

XIDS = """
import sys
from harness.machine.nvml import NvidiaDriver
meter = NvidiaDriver()
print(meter.new_xids("GPU-a"), meter.new_xids("MIG-x"), meter.new_xids("MIG-y"))
with open(sys.argv[1], "a") as file:
    file.write("xid 1 79\\nxid 0 31\\nxid 1 43\\n")
print(meter.new_xids("MIG-x"), meter.new_xids("GPU-a"), meter.new_xids("GPU-a"), meter.new_xids("MIG-y"))
"""


def test_errors_are_told_once_to_each_gpu_and_to_every_instance_of_one(nvml_library: Path, tmp_path: Path) -> None:
    gpus = StubGpu(), StubGpu(mig_mode=1, instances=[Instance("MIG-x", 1, 0), Instance("MIG-y", 2, 0)])
    machine = machine_of(*gpus)
    machine.xids.append((0, 48))  # before anybody watched
    machine.write(tmp_path / "machine")
    code = XIDS.replace("sys.argv[1]", repr(str(tmp_path / "machine")))
    assert run_child(code, nvml_library.parent, tmp_path / "machine").splitlines() == [
        "() () ()",
        "(79, 43) (31,) () (79, 43)",
    ]


def test_a_driver_that_reports_no_errors_is_asked_for_none(driver: Driver) -> None:
    for function in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents"):
        driver.show(machine_of(StubGpu(), failures=[(function, -1, UNKNOWN)]))
        assert driver.new_xids("GPU-a") == ()
