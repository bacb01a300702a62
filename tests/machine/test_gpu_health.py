"""The driver and the state of each GPU through the real pynvml, over the driver of tests/support/nvml_stub."""

import pytest

from harness.machine.gpu_health import FaultKind, GpuFault
from harness.machine.gpus import read_machine
from tests.support.nvml_stub.build import Instance, StubGpu, machine_of
from tests.support.nvml_stub.driver import Driver

GPU_IS_LOST, RESET_REQUIRED, NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN = 15, 16, 3, 13, 999
SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80


def test_the_driver_and_its_cards(driver: Driver) -> None:
    health = driver.read_gpu_health(machine_of(StubGpu(model="NVIDIA H200", capability=(9, 0)), StubGpu()))
    assert (health.driver, health.cuda, health.problem) == ("570.86.15", (12, 8), "")
    assert [(gpu.number, gpu.uuid, gpu.model) for gpu in health.gpus] == [
        (0, "GPU-a", "NVIDIA H200"),
        (1, "GPU-b", "NVIDIA Stub"),
    ]
    assert health.gpus[0].capability == (9, 0)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (SW_POWER_CAP, ()),
        (HW_SLOWDOWN | POWER_BRAKE, ("hardware slowdown", "slowed by the power supply")),
        (SW_THERMAL | SW_POWER_CAP, ("too hot",)),
        (HW_THERMAL, ("far too hot",)),
    ],
)
def test_lowered_clocks_are_told_but_not_the_power_cap(driver: Driver, bits: int, words: tuple[str, ...]) -> None:
    (gpu,) = driver.read_gpu_health(machine_of(StubGpu(slow=bits))).gpus
    assert gpu.slowdowns == words


def test_links_active_and_not(driver: Driver) -> None:
    linked = StubGpu(links=["00000000:02:00.0"] * 3, idle_links=1)
    health = driver.read_gpu_health(machine_of(linked, StubGpu()))
    assert [(gpu.num_active_links, gpu.num_links) for gpu in health.gpus] == [(3, 4), (0, 0)]


def test_a_lost_card_is_one_that_cannot_be_read(driver: Driver) -> None:
    failures = [("nvmlDeviceGetUUID", 1, GPU_IS_LOST)]
    health = driver.read_gpu_health(machine_of(StubGpu(), StubGpu(), StubGpu(), failures=failures))
    assert [gpu.problem for gpu in health.gpus] == ["", "cannot be read: GPU is lost", ""]


def test_what_an_old_driver_does_not_offer_is_unknown(driver: Driver) -> None:
    functions = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlSystemGetCudaDriverVersion_v2"]
    failures = [(function, -1, FUNCTION_NOT_FOUND) for function in functions]
    health = driver.read_gpu_health(machine_of(StubGpu(slow=HW_SLOWDOWN), failures=failures))
    assert (health.cuda, health.gpus[0].slowdowns, health.gpus[0].problem) == (None, (), "")


def test_a_driver_that_does_not_count(driver: Driver) -> None:
    health = driver.read_gpu_health(machine_of(StubGpu(), failures=[("nvmlDeviceGetCount_v2", -1, UNKNOWN)]))
    assert health.problem == "the NVIDIA driver does not answer (Unknown Error)"


FAULTS = [
    (StubGpu(), None),
    (StubGpu(uncorrected=2), FaultKind.UNCORRECTED),
    (StubGpu(remap_pending=True), FaultKind.REMAP_PENDING),
    (StubGpu(remap_failed=True, remap_pending=True, uncorrected=1), FaultKind.REMAP_FAILED),
    (StubGpu(retirement_pending=True), FaultKind.RETIREMENT_PENDING),
]


@pytest.mark.parametrize(("gpu", "kind"), FAULTS)
def test_a_fault_of_the_memory_is_the_same_for_a_run_for_doctor_and_before_a_lease(
    driver: Driver, gpu: StubGpu, kind: FaultKind | None
) -> None:
    machine = machine_of(StubGpu(), gpu)
    health = driver.read_gpu_health(machine)
    fault = health.gpus[1].fault
    assert (fault and fault.kind, health.gpus[0].fault) == (kind, None)
    assert driver.fault("GPU-b") == fault
    assert driver.fault("GPU-a") is None
    inventory = driver.read_inventory(machine)
    assert [out.reason for out in inventory.left_out] == ([] if fault is None else [str(fault)])
    assert len(inventory.gpus) == (2 if fault is None else 1)


def test_a_mig_instance_has_the_faults_of_its_gpu(driver: Driver) -> None:
    driver.show(machine_of(StubGpu(mig_mode=1, instances=[Instance("MIG-1")], uncorrected=4)))
    assert driver.fault("MIG-1") == GpuFault(FaultKind.UNCORRECTED, "GPU-a", 4)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEccErrors"])
@pytest.mark.parametrize(("code", "kind"), [(GPU_IS_LOST, FaultKind.LOST), (RESET_REQUIRED, FaultKind.RESET_REQUIRED)])
def test_a_gpu_that_the_driver_has_lost_has_a_fault(driver: Driver, function: str, code: int, kind: FaultKind) -> None:
    also = [("nvmlDeviceGetHandleByIndex_v2", 0, code)]
    driver.show(machine_of(StubGpu(), StubGpu(), failures=[(function, 0, code), *also]))
    fault = driver.fault("GPU-a")
    assert fault is not None
    assert (fault.kind, driver.fault("GPU-b")) == (kind, None)


def test_a_gpu_beside_a_lost_one_has_no_fault(driver: Driver) -> None:
    failures = [("nvmlDeviceGetHandleByUUID", -1, GPU_IS_LOST), ("nvmlDeviceGetHandleByIndex_v2", 0, GPU_IS_LOST)]
    driver.show(machine_of(StubGpu(), StubGpu(), failures=failures))
    faults = [driver.fault("GPU-a"), driver.fault("GPU-b")]
    assert faults == [GpuFault(FaultKind.LOST, "GPU-a"), None]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_gpu_without_error_counters_has_no_fault(driver: Driver, code: int) -> None:
    asked = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus")
    failures = [(function, -1, code) for function in asked]
    driver.show(machine_of(StubGpu(uncorrected=1, remap_failed=True, retirement_pending=True), failures=failures))
    assert driver.fault("GPU-a") is None


def test_no_driver_is_no_error() -> None:
    assert read_machine({})[0].problem


NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3


@pytest.mark.parametrize(
    ("fabric", "problem"),
    [
        (None, ""),
        ((0, 0), ""),
        ((NOT_STARTED, 0), "it has not been started"),
        ((IN_PROGRESS, 0), "it is still coming up"),
        ((COMPLETED, 0), ""),
        ((COMPLETED, UNKNOWN), f"joining it has failed with status {UNKNOWN}"),
    ],
)
def test_the_fabric_of_nvswitches(driver: Driver, fabric: tuple[int, int] | None, problem: str) -> None:
    (gpu,) = driver.read_gpu_health(machine_of(StubGpu(fabric=fabric))).gpus
    assert gpu.fabric_problem == problem
