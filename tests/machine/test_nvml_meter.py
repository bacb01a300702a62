"""Memory and processes of GPUs through the real pynvml, and how they change while a meter is open."""

import os
import subprocess

from tests.support.nvml_stub.build import Instance, Process, StubGpu, machine_of
from tests.support.nvml_stub.driver import Driver

FUNCTION_NOT_FOUND, GPU_IS_LOST = 13, 15
NO_SUCH_PID = 2**31


def test_memory_can_be_watched_as_it_changes(driver: Driver) -> None:
    gpu = StubGpu(used_mb=10)
    machine = machine_of(gpu, StubGpu(used_mb=20))
    driver.show(machine)
    assert driver.used_memory_bytes(["GPU-a", "GPU-b"]) == {"GPU-a": 10 * 10**6, "GPU-b": 20 * 10**6}
    gpu.used_mb = 4000
    gpu.processes.append(Process(os.getpid(), used_mb=3990))
    driver.show(machine)
    assert driver.used_memory_bytes(["GPU-a"]) == {"GPU-a": 4000 * 10**6}
    (process,) = driver.processes_on("GPU-a")
    assert (process.pid, process.used_bytes) == (os.getpid(), 3990 * 10**6)
    assert "python" in process.command
    assert len(process.command) <= 60


def test_who_holds_a_card_is_named_without_secrets(driver: Driver) -> None:
    with subprocess.Popen(["sh", "-c", "read x", "--api-key=CARDSECRET12345"], stdin=subprocess.PIPE) as other:
        driver.show(machine_of(StubGpu(used_mb=10, processes=[Process(other.pid, used_mb=9)])))
        (process,) = driver.processes_on("GPU-a")
        other.communicate(b"\n")
    assert process.command == "sh -c read x --api-key=<redacted>"


def test_the_drivers_reserve_counts_for_nothing_where_the_driver_tells_it(driver: Driver) -> None:
    driver.show(machine_of(StubGpu(used_mb=10)))
    assert driver.used_memory_bytes(["GPU-a"]) == {"GPU-a": 10 * 10**6}
    driver.show(machine_of(StubGpu(used_mb=10), failures=[("nvmlDeviceGetMemoryInfo_v2", -1, FUNCTION_NOT_FOUND)]))
    assert driver.used_memory_bytes(["GPU-a"]) == {"GPU-a": 610 * 10**6}


def test_a_card_that_cannot_be_read_has_no_reading(driver: Driver) -> None:
    lost = [("nvmlDeviceGetHandleByUUID", 0, GPU_IS_LOST)]
    driver.show(machine_of(StubGpu(), StubGpu(), failures=lost))
    assert driver.used_memory_bytes(["GPU-a", "GPU-b", "GPU-none"]) == {"GPU-b": 0}
    assert driver.processes_on("GPU-a") == ()


def test_a_card_that_is_a_numa_node_has_no_reading(driver: Driver) -> None:
    machine = machine_of(StubGpu(used_mb=9000, numa_node=2))
    assert driver.read_inventory(machine).gpus
    assert driver.used_memory_bytes(["GPU-a"]) == {}


def test_a_mig_instance_has_readings_of_its_own(driver: Driver) -> None:
    instances = [Instance("MIG-x", 1), Instance("MIG-y", 2, used_mb=5000, processes=[Process(NO_SUCH_PID)])]
    driver.show(machine_of(StubGpu(mig_mode=1, instances=instances)))
    assert driver.used_memory_bytes(["MIG-x", "MIG-y"]) == {"MIG-x": 0, "MIG-y": 5000 * 10**6}
    assert [process.pid for process in driver.processes_on("MIG-y")] == [NO_SUCH_PID]
    assert driver.processes_on("MIG-x") == ()


def test_memory_by_process_is_unknown_where_nvml_does_not_report_it(driver: Driver) -> None:
    gpu = StubGpu(processes=[Process(7, used_mb=3000), Process(8, used_mb=-1), Process(9, 10, kind="graphics")])
    driver.show(machine_of(gpu, StubGpu(), failures=[("nvmlDeviceGetComputeRunningProcesses_v3", 1, GPU_IS_LOST)]))
    assert driver.memory_by_pid("GPU-a") == {7: 3000 * 10**6, 8: None}
    assert driver.memory_by_pid("GPU-b") == {}
    assert driver.memory_by_pid("GPU-none") == {}
