"""GPUs of AMD, over the pretended ROCm of tests/support/amdsmi_stub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InventoryError
from harness.machine.gpu_health import FaultKind
from harness.machine.inventory import Inventory
from tests.support.amdsmi_stub.build import AmdMachine, StubAmdGpu, StubProcess, machine_of, stub_env, uuid_of
from tests.support.amdsmi_stub.driver import AmdDriver
from tests.support.nvml_stub.build import StubGpu
from tests.support.nvml_stub.build import machine_of as nvidia_machine_of
from tests.support.nvml_stub.build import stub_env as nvml_stub_env

NO_SUCH_PID = 2**31
ROOT = str(Path(__file__).parents[2])


def ids(inventory: Inventory) -> list[str]:
    return [gpu.gpu_id for gpu in inventory.gpus]


def reasons(inventory: Inventory) -> dict[int, str]:
    return {left_out.index: left_out.reason for left_out in inventory.left_out}


def eight() -> AmdMachine:
    return machine_of(*(StubAmdGpu() for _ in range(8)))


def test_a_gpu_as_amd_smi_reports_it(amd_driver: AmdDriver) -> None:
    (gpu,) = amd_driver.read_inventory(machine_of(StubAmdGpu(model="AMD Instinct MI300X", total_mib=196_592))).gpus
    assert (gpu.gpu_id, gpu.index, gpu.model, gpu.number) == (uuid_of(0), 0, "AMD Instinct MI300X", 0)
    assert (round(gpu.memory_gb), gpu.capability, gpu.is_mig, gpu.is_amd) == (206, (0, 0), False, True)


def test_numbers_follow_the_kernels_nodes_and_not_the_order_of_amd_smi(amd_driver: AmdDriver) -> None:
    machine = eight()
    for gpu, node in zip(machine.gpus, (5, 4, 3, 2, 9, 8, 7, 6), strict=True):
        gpu.node = node
    inventory = amd_driver.read_inventory(machine)
    assert ids(inventory) == [uuid_of(number) for number in (3, 2, 1, 0, 7, 6, 5, 4)]
    assert [gpu.number for gpu in inventory.gpus] == list(range(8))


def test_gpus_that_a_container_hides_have_no_number(amd_driver: AmdDriver) -> None:
    machine = eight()
    machine.gpus[0].node = machine.gpus[2].node = "N/A"
    inventory = amd_driver.read_inventory(machine)
    visible = [(uuid_of(gpu), number) for number, gpu in enumerate((1, 3, 4, 5, 6, 7))]
    assert [(gpu.gpu_id, gpu.number) for gpu in inventory.gpus] == visible


def test_older_releases_without_enumeration_and_ids_have_names_too(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(), StubAmdGpu())
    machine.failures = [("amdsmi_get_gpu_enumeration_info", -1, "NOT_SUPPORTED")]
    machine.gpus[1].unique_id = 0
    assert ids(amd_driver.read_inventory(machine)) == [uuid_of(0), "GPU-pci-0000-04-00-0"]


# ---- which GPUs ----


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "5,4"}, [(5, 5), (4, 4)]),
        ({"CUDA_VISIBLE_DEVICES": "5,4"}, [(5, 5), (4, 4)]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "5"}, [(1, 1)]),
        ({"ROCR_VISIBLE_DEVICES": "6,7,2"}, [(6, 0), (7, 1), (2, 2)]),
        ({"ROCR_VISIBLE_DEVICES": "6,7,2", "HIP_VISIBLE_DEVICES": "2,0"}, [(2, 2), (6, 0)]),
        ({"ROCR_VISIBLE_DEVICES": f"{uuid_of(3)},0", "CUDA_VISIBLE_DEVICES": "0"}, [(3, 0)]),
    ],
)
def test_gpus_are_cut_to_the_inherited_lists(
    amd_driver: AmdDriver, environ: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    inventory = amd_driver.read_inventory(eight(), "auto", environ)
    assert [(gpu.gpu_id, gpu.number) for gpu in inventory.gpus] == [(uuid_of(gpu), hip) for gpu, hip in expected]
    assert [gpu.index for gpu in inventory.gpus] == list(range(len(expected)))


def test_a_selection_names_positions_within_the_inherited_list_or_uuids(amd_driver: AmdDriver) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "6,7,2"}
    (gpu,) = amd_driver.read_inventory(eight(), "2,", environ).gpus
    assert (gpu.gpu_id, gpu.index, gpu.number) == (uuid_of(2), 2, 2)
    (gpu,) = amd_driver.read_inventory(eight(), uuid_of(7), environ).gpus
    assert (gpu.index, gpu.number) == (1, 1)
    with pytest.raises(InventoryError, match="is not one"):
        amd_driver.read_inventory(eight(), uuid_of(0), environ)


# ---- busy and broken GPUs ----


def test_a_gpu_with_a_process_names_it_and_one_without_memory_counts_for_nothing(amd_driver: AmdDriver) -> None:
    me = StubProcess(os.getpid(), 12 * 10**9)
    machine = machine_of(
        StubAmdGpu(used_mib=11_730, processes=[me]), StubAmdGpu(processes=[StubProcess(os.getpid(), 0)])
    )
    inventory = amd_driver.read_inventory(machine)
    assert ids(inventory) == [uuid_of(1)]
    assert f"busy: 12.3 GB held by pid {os.getpid()} (" in reasons(inventory)[0]


def test_an_idle_gpu_may_show_what_the_driver_keeps_and_no_more(amd_driver: AmdDriver) -> None:
    inventory = amd_driver.read_inventory(machine_of(StubAmdGpu(used_mib=480), StubAmdGpu(used_mib=500)))
    assert ids(inventory) == [uuid_of(0)]
    assert "no process that the driver lists" in reasons(inventory)[1]


def test_processes_that_may_not_be_listed_are_unknown_and_memory_decides(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(), StubAmdGpu(used_mib=9000))
    machine.failures = [("amdsmi_get_gpu_process_list", -1, "NO_PERM")]
    assert ids(amd_driver.read_inventory(machine)) == [uuid_of(0)]


def test_amounts_that_amd_smi_does_not_know_are_unknown(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(total_mib="N/A", used_mib="N/A", processes=[StubProcess(os.getpid(), "N/A")]))
    (gpu,) = amd_driver.read_inventory(machine).gpus
    assert (gpu.memory_gb, amd_driver.used_memory_bytes([uuid_of(0)])) == (0.0, {})


@pytest.mark.parametrize("function", ["amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_vram_usage"])
def test_a_gpu_that_answers_with_an_error_is_left_out_and_keeps_its_number(
    amd_driver: AmdDriver, function: str
) -> None:
    machine = machine_of(*(StubAmdGpu() for _ in range(3)), failures=[(function, 1, "API_FAILED")])
    inventory = amd_driver.read_inventory(machine)
    assert [(gpu.gpu_id, gpu.number) for gpu in inventory.gpus] == [(uuid_of(0), 0), (uuid_of(2), 2)]
    assert reasons(inventory) == {1: "cannot be read: Error code: 7 | AMDSMI_STATUS_API_FAILED - stub"}


def test_a_driver_that_does_not_count_is_said(amd_driver: AmdDriver) -> None:
    broken = machine_of(StubAmdGpu(), failures=[("amdsmi_get_processor_handles", -1, "UNKNOWN_ERROR")])
    assert "the AMD driver does not answer" in amd_driver.read_inventory(broken).note
    in_doubt = machine_of(StubAmdGpu(), StubAmdGpu(), failures=[("amdsmi_get_gpu_kfd_info", 0, "API_FAILED")])
    assert "the AMD driver does not answer" in amd_driver.read_inventory(in_doubt).note
    absent = machine_of(StubAmdGpu(), failures=[("amdsmi_init", -1, "DRIVER_NOT_LOADED")])
    assert amd_driver.read_inventory(absent).note == "no NVIDIA or AMD driver here: 0 GPUs"


# ---- partitions and links ----


def split() -> AmdMachine:
    machine = machine_of(*(StubAmdGpu(compute_partition="DPX", total_mib=100_000, used_mib=9000) for _ in range(3)))
    machine.gpus[1].unique_id, machine.gpus[1].partition = machine.gpus[0].unique_id, 1
    machine.gpus[2].compute_partition = "SPX"
    machine.gpus[2].used_mib = 0
    return machine


def test_a_split_gpu_is_its_partitions_and_only_processes_show_that_one_is_busy(amd_driver: AmdDriver) -> None:
    machine = split()
    machine.gpus[1].processes = [StubProcess(NO_SUCH_PID)]
    inventory = amd_driver.read_inventory(machine)
    assert [(gpu.gpu_id, gpu.model, gpu.number) for gpu in inventory.gpus] == [
        (f"{uuid_of(0)}/0", "AMD Instinct Stub DPX", 0),
        (uuid_of(2), "AMD Instinct Stub", 2),
    ]
    assert [round(gpu.memory_gb) for gpu in inventory.gpus] == [52, 105]
    assert f"held by pid {NO_SUCH_PID}" in reasons(inventory)[1]
    assert ids(amd_driver.read_inventory(split(), uuid_of(0))) == [f"{uuid_of(0)}/0", f"{uuid_of(0)}/1"]
    assert amd_driver.used_memory_bytes([f"{uuid_of(0)}/0", uuid_of(2)]) == {uuid_of(2): 0}


def test_links_between_gpus(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(xgmi=[1]), StubAmdGpu(xgmi=[0]), StubAmdGpu())
    assert amd_driver.read_inventory(machine).num_links == {frozenset({uuid_of(0), uuid_of(1)}): 1}
    machine.failures = [("amdsmi_topo_get_link_type", -1, "API_FAILED")]
    assert amd_driver.read_inventory(machine).num_links == {}


# ---- memory while a meter is open, and health ----


def test_memory_and_processes_can_be_watched_as_they_change(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(used_mib=10), StubAmdGpu(used_mib=20))
    amd_driver.show(machine)
    assert amd_driver.used_memory_bytes([uuid_of(0), uuid_of(1)]) == {uuid_of(0): 10 * 2**20, uuid_of(1): 20 * 2**20}
    machine.gpus[0].used_mib = 4000
    machine.gpus[0].processes = [StubProcess(os.getpid(), 3990 * 2**20)]
    machine.failures = [("amdsmi_get_gpu_vram_usage", 1, "BUSY")]
    amd_driver.show(machine)
    assert amd_driver.used_memory_bytes([uuid_of(0), uuid_of(1), "GPU-none"]) == {uuid_of(0): 4000 * 2**20}
    (process,) = amd_driver.processes_on(uuid_of(0))
    assert (process.pid, process.used_bytes) == (os.getpid(), 3990 * 2**20)
    assert "python" in process.command
    assert amd_driver.processes_on("GPU-none") == ()


def test_the_driver_and_its_gpus(amd_driver: AmdDriver) -> None:
    hot = StubAmdGpu(link_status="XUUD", violations=["socket_thrm", "ppt_pwr"])
    health = amd_driver.read_gpu_health(machine_of(hot, StubAmdGpu()))
    assert (health.vendor, health.driver, health.cuda, health.problem) == ("AMD", "6.14.14", None, "")
    assert [(gpu.number, gpu.num_active_links, gpu.num_links, gpu.slowdowns) for gpu in health.gpus] == [
        (0, 2, 3, ("too hot",)),
        (1, 0, 0, ()),
    ]


def test_uncorrected_errors_are_a_fault_for_a_run_for_doctor_and_before_a_lease(amd_driver: AmdDriver) -> None:
    machine = machine_of(StubAmdGpu(uncorrected="N/A"), StubAmdGpu(uncorrected=2))
    health = amd_driver.read_gpu_health(machine)
    fault = health.gpus[1].fault
    assert fault is not None
    assert (fault.kind, fault.num_errors, health.gpus[0].fault) == (FaultKind.UNCORRECTED, 2, None)
    assert fault.remedy.startswith("end the programs on it and run amd-smi reset --gpureset -g 1")
    inventory = amd_driver.read_inventory(machine)
    assert reasons(inventory) == {1: str(fault)}
    faults = [amd_driver.fault(gpu_id) for gpu_id in (ids(inventory)[0], inventory.left_out[0].gpu_id, "GPU-none")]
    assert faults == [None, fault, None]


def test_what_an_older_release_does_not_offer_is_unknown(amd_driver: AmdDriver) -> None:
    functions = ["kfd_info", "enumeration_info", "compute_partition", "process_list", "xgmi_link_status"]
    failures = [(f"amdsmi_get_gpu_{function}", -1, "NOT_SUPPORTED") for function in functions]
    failures += [("amdsmi_get_violation_status", -1, "NOT_SUPPORTED")]
    machine = machine_of(StubAmdGpu(), StubAmdGpu(), failures=failures)
    assert [gpu.number for gpu in amd_driver.read_inventory(machine).gpus] == [0, 1]
    assert [gpu.problem for gpu in amd_driver.read_gpu_health(machine).gpus] == ["", ""]


# ---- both drivers, half of one, and one that hangs ----


def run_child(code: str, env: dict[str, str]) -> str:
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", code]
    env = {**own, **env, "PYTHONPATH": ROOT}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


READS = """
import os
from harness.core.errors import InventoryError
from harness.machine.gpus import read_inventory
try:
    inventory = read_inventory("auto", os.environ)
    print([gpu.gpu_id for gpu in inventory.gpus], inventory.note)
except InventoryError as error:
    print(error.what)
"""


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "GPUs of NVIDIA and of AMD are visible"),
        pytest.param({"ROCR_VISIBLE_DEVICES": ""}, "['GPU-a']", marks=pytest.mark.full),
        pytest.param({"HIP_VISIBLE_DEVICES": "-1"}, "['GPU-a']", marks=pytest.mark.full),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-a"}, "['GPU-a']", marks=pytest.mark.full),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "0"}, f"['{uuid_of(0)}']", marks=pytest.mark.full
        ),
    ],
)
def test_gpus_of_two_vendors_are_refused_until_one_is_hidden(
    rocm: Path, nvml_library: Path, tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    machine_of(StubAmdGpu()).write(tmp_path / "amd")
    nvidia_machine_of(StubGpu()).write(tmp_path / "nvidia")
    both = stub_env(rocm, tmp_path / "amd") | nvml_stub_env(nvml_library, tmp_path / "nvidia")
    assert run_child(READS, both | environ).startswith(said)


@pytest.mark.parametrize(
    ("has_kfd", "note"),
    [
        (True, "an AMD driver is here, but not libamd_smi.so with its Python package"),
        (False, "no NVIDIA or AMD driver"),
    ],
)
def test_a_rocm_without_its_package_is_said_where_the_kernel_has_the_driver(
    rocm: Path, tmp_path: Path, has_kfd: bool, note: str
) -> None:
    (tmp_path / "kfd").touch()
    kfd = tmp_path / ("kfd" if has_kfd else "none")
    env = stub_env(rocm, tmp_path / "none") | {"ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)}
    code = f"from harness.machine import amd_smi\namd_smi.KFD, amd_smi.LIBRARY = {str(kfd)!r}, 'no_such.so'\n"
    assert note in run_child(code + READS, env)


def test_a_package_of_another_release_than_its_library_is_no_crash(rocm: Path, tmp_path: Path) -> None:
    package = tmp_path / "share" / "amd_smi" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AttributeError('undefined symbol: amdsmi_new')")
    env = stub_env(rocm, tmp_path / "none") | {"ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)}
    assert "amdsmi cannot be imported (AttributeError: undefined symbol: amdsmi_new)" in run_child(READS, env)


HANGS = """
import asyncio
import os
from harness.core.clock import SystemClock
from harness.machine.gpu_watch import GpuWatch
from harness.machine.gpus import DriverMeter
watch = GpuWatch(DriverMeter(os.environ, is_amd=True), SystemClock(), answer_s=0.3, wait_s=0)
ids = ("GPU-00000000000000a0", "GPU-00000000000000a1")
print(asyncio.run(watch.not_back(ids, {})))
"""


def test_a_gpu_that_does_not_answer_is_given_up_on_and_the_others_are_not(rocm: Path, tmp_path: Path) -> None:
    hangs = [("amdsmi_get_gpu_vram_usage", 1, "HANGS")]
    machine_of(StubAmdGpu(), StubAmdGpu(), failures=hangs).write(tmp_path / "machine")
    held = run_child(HANGS, stub_env(rocm, tmp_path / "machine"))
    assert held == f"{{'{uuid_of(1)}': 'it cannot be read: the driver did not answer within 0.3 s'}}"


def test_memory_by_process_is_unknown_where_amd_smi_does_not_report_it(amd_driver: AmdDriver) -> None:
    processes = [StubProcess(7, 3 * 10**9), StubProcess(8, "N/A"), StubProcess(9, 0)]
    amd_driver.show(machine_of(StubAmdGpu(processes=processes), StubAmdGpu()))
    assert amd_driver.memory_by_pid(uuid_of(0)) == {7: 3 * 10**9, 8: None}
    assert amd_driver.memory_by_pid(uuid_of(1)) == {}
    assert amd_driver.memory_by_pid("GPU-none") == {}
    assert amd_driver.accounted_peaks(uuid_of(0), [7]) == {}
