"""The machine's GPUs through the real pynvml, whose library is the pretended driver of tests/support/nvml_stub."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import InventoryError, UsageError
from harness.machine.gpu_selection import ORDER_NOTE
from harness.machine.gpus import read_inventory
from harness.machine.inventory import Inventory
from harness.process.claims import Claims
from tests.support.foreign_claims import NOBODY, held_by_another_user
from tests.support.nvml_stub.build import Instance, Machine, Process, StubGpu, machine_of
from tests.support.nvml_stub.driver import Driver
from tests.support.suite_runs import stub_gpus


@pytest.fixture(autouse=True)
def _turn() -> Iterator[None]:
    with stub_gpus.held():
        yield


INVALID_ARGUMENT, NO_PERMISSION = 2, 4
NOT_SUPPORTED, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 3, 9, 13, 15, 18, 999
NO_SUCH_PID = 2**31


def ids(inventory: Inventory) -> list[str]:
    return [gpu.gpu_id for gpu in inventory.gpus]


def reasons(inventory: Inventory) -> dict[int, str]:
    return {left_out.index: left_out.reason for left_out in inventory.left_out}


def test_a_card_as_nvml_tells_it(driver: Driver) -> None:
    machine = machine_of(StubGpu(total_mb=143_000, capability=(9, 0), model="NVIDIA H200 NVL", used_mb=7))
    (gpu,) = driver.read_inventory(machine).gpus
    assert (gpu.gpu_id, gpu.index, gpu.model, gpu.memory_gb) == ("GPU-a", 0, "NVIDIA H200 NVL", 143.0)
    assert (gpu.capability, gpu.is_mig) == ((9, 0), False)


def test_what_nvml_cannot_tell_is_unknown(driver: Driver) -> None:
    functions = ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCudaComputeCapability"]
    functions += ["nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3"]
    functions += ["nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3"]
    for code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        machine = machine_of(StubGpu(), failures=[(function, -1, code) for function in functions])
        (gpu,) = driver.read_inventory(machine).gpus
        assert (gpu.memory_gb, gpu.capability) == (0.0, (0, 0))


# ---- which GPUs ----


def test_cards_are_cut_to_cuda_visible_devices_and_numbered_within_it(driver: Driver) -> None:
    machine = machine_of(StubGpu(), StubGpu(), StubGpu(), StubGpu())
    inventory = driver.read_inventory(machine, "auto", {"CUDA_VISIBLE_DEVICES": "3,GPU-b,1"})
    assert ids(inventory) == ["GPU-d"]
    assert "'GPU-b'" in inventory.note
    inventory = driver.read_inventory(machine, "1,0", {"CUDA_VISIBLE_DEVICES": "3,1"})
    assert [(gpu.gpu_id, gpu.index) for gpu in inventory.gpus] == [("GPU-b", 1), ("GPU-d", 0)]
    with pytest.raises(InventoryError, match="no GPU 2"):
        driver.read_inventory(machine, "2,", {"CUDA_VISIBLE_DEVICES": "3,1"})
    with pytest.raises(InventoryError, match="GPU-a is not one"):
        driver.read_inventory(machine, "GPU-a", {"CUDA_VISIBLE_DEVICES": "3,1"})


@pytest.mark.parametrize(("selection", "environ"), [("0,", {}), ("auto", {"CUDA_VISIBLE_DEVICES": "0"})])
def test_numbers_among_mixed_models_are_noted(driver: Driver, selection: str, environ: dict[str, str]) -> None:
    machine = machine_of(StubGpu(model="A100"), StubGpu(model="H100"))
    assert ORDER_NOTE in driver.read_inventory(machine, selection, environ).note
    assert not driver.read_inventory(machine, selection, {**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).note
    assert not driver.read_inventory(machine_of(StubGpu(), StubGpu()), selection, environ).note


def test_positions_within_a_list_of_uuids_need_no_note(driver: Driver) -> None:
    machine = machine_of(StubGpu(model="A100"), StubGpu(model="H100"))
    assert not driver.read_inventory(machine, "0,", {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}).note


def test_a_count_takes_the_first_free_cards(driver: Driver) -> None:
    machine = machine_of(StubGpu(used_mb=9000), StubGpu(), StubGpu(), StubGpu())
    inventory = driver.read_inventory(machine, "2")
    assert ids(inventory) == ["GPU-b", "GPU-c"]
    assert list(reasons(inventory)) == [0]


def test_too_large_a_count_says_how_many_are_free_and_why_not_more(driver: Driver) -> None:
    machine = machine_of(StubGpu(used_mb=9000), StubGpu(), StubGpu(compute_mode=2))
    with pytest.raises(InventoryError) as error:
        driver.read_inventory(machine, "2")
    assert "1 of the 3 GPUs" in error.value.what
    assert "9.0 GB in use" in error.value.what
    assert "compute mode" in error.value.what
    assert error.value.remedy


def test_an_illegal_text_is_a_usage_error_before_any_driver_is_asked() -> None:
    with pytest.raises(UsageError):
        read_inventory("some", {})


def test_no_cards_and_pretended_cards_ask_no_driver() -> None:
    assert read_inventory("none", {}) == read_inventory("0", {}) == Inventory()
    inventory = read_inventory("sim:2", {"CUDA_VISIBLE_DEVICES": ""})
    assert ids(inventory) == ["SIM-0", "SIM-1"]
    assert inventory.pretended


# ---- busy and broken GPUs ----


def test_a_card_with_a_process_names_it(driver: Driver) -> None:
    me = Process(os.getpid(), used_mb=12_000)
    inventory = driver.read_inventory(machine_of(StubGpu(used_mb=12_300, processes=[me]), StubGpu()))
    assert ids(inventory) == ["GPU-b"]
    assert f"busy: 12.3 GB held by pid {os.getpid()} (" in reasons(inventory)[0]
    assert "python" in reasons(inventory)[0]


def test_a_process_that_cannot_be_seen_is_said_to_be(driver: Driver) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(processes=[Process(NO_SUCH_PID)])))
    assert reasons(inventory)[0] == f"busy: 0.0 GB held by pid {NO_SUCH_PID} (not visible from here)"


def test_many_processes_are_counted(driver: Driver) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(processes=[Process(NO_SUCH_PID + n) for n in range(5)])))
    assert reasons(inventory)[0].endswith("and 2 more")


def test_memory_without_a_process_is_busy_and_an_idle_cards_is_not(driver: Driver) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(used_mb=65), StubGpu(used_mb=64)))
    assert ids(inventory) == ["GPU-b"]
    assert "no process that the driver lists" in reasons(inventory)[0]


def test_a_screen_does_not_make_a_card_busy(driver: Driver) -> None:
    screen = Process(NO_SUCH_PID, used_mb=900, kind="graphics")
    assert ids(driver.read_inventory(machine_of(StubGpu(used_mb=910, processes=[screen])))) == ["GPU-a"]
    assert not driver.read_inventory(machine_of(StubGpu(used_mb=1910, processes=[screen]))).gpus


def test_an_old_drivers_processes_are_seen(driver: Driver) -> None:
    old = [("nvmlDeviceGetComputeRunningProcesses_v3", -1, FUNCTION_NOT_FOUND)]
    inventory = driver.read_inventory(machine_of(StubGpu(processes=[Process(NO_SUCH_PID)]), failures=old))
    assert "held by" in reasons(inventory)[0]


def test_a_prohibited_card_is_left_out(driver: Driver) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(compute_mode=2), StubGpu(compute_mode=3)))
    assert ids(inventory) == ["GPU-b"]
    assert "Prohibited" in reasons(inventory)[0]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
    ],
)
@pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN])
def test_a_card_that_cannot_be_opened_is_left_out_in_nvmls_words(driver: Driver, function: str, code: int) -> None:
    inventory = driver.read_inventory(machine_of(StubGpu(), StubGpu(), StubGpu(), failures=[(function, 1, code)]))
    assert ids(inventory) == ["GPU-a", "GPU-c"]
    assert [gpu.index for gpu in inventory.gpus] == [0, 2]
    assert reasons(inventory)[1] == f"cannot be read: {'GPU is lost' if code == GPU_IS_LOST else 'Unknown Error'}"


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (StubGpu(used_mb=9000, processes=[Process(NO_SUCH_PID)]), f"held by pid {NO_SUCH_PID}"),
        (StubGpu(compute_mode=2), "compute mode"),
        (StubGpu(mig_mode=1), "no instance"),
    ],
)
def test_a_named_card_that_cannot_be_had_is_an_error(driver: Driver, gpu: StubGpu, words: str) -> None:
    with pytest.raises(InventoryError, match=words):
        driver.read_inventory(machine_of(StubGpu(), gpu), "0,GPU-b")


# ---- claims ----


def test_a_card_of_another_run_is_left_out_and_named(driver: Driver) -> None:
    with Claims() as other_run:
        assert other_run.try_claim("gpu-GPU-a")
        inventory = driver.read_inventory(machine_of(StubGpu(), StubGpu()), claims=True)
        assert ids(inventory) == ["GPU-b"]
        assert reasons(inventory)[0] == f"leased by another rlharness run (pid {os.getpid()})"
        with pytest.raises(InventoryError, match="another rlharness run"):
            driver.read_inventory(machine_of(StubGpu(), StubGpu()), "0,", claims=True)
    assert ids(driver.read_inventory(machine_of(StubGpu(), StubGpu()), claims=True)) == ["GPU-a", "GPU-b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("listens", [True, False])
def test_a_gpu_whose_name_another_user_holds_can_be_insisted_on_by_one_run(driver: Driver, listens: bool) -> None:
    machine = machine_of(StubGpu(), StubGpu())
    with held_by_another_user("gpu-GPU-a", listens=listens) as pid:
        inventory = driver.read_inventory(machine, claims=True)
        whose = f" (pid {pid} of user {NOBODY})" if listens else ""
        assert reasons(inventory)[0] == f"leased by another rlharness run{whose}"
        assert ids(driver.read_inventory(machine, "as-is:0", claims=True)) == ["GPU-a"]
        with Claims() as other_run:
            assert other_run.try_claim_past("gpu-GPU-a")
            with pytest.raises(InventoryError, match="another rlharness run"):
                driver.read_inventory(machine, "as-is:0", claims=True)


# Runs in a child, which holds what it claimed while it asks what is still free.
CLAIMING = """
from harness.bits.errors import InventoryError
from harness.process.claims import Claims
from harness.machine.gpus import read_inventory
def free():
    with Claims() as other:
        return [n for n in ("gpu-GPU-a", "gpu-GPU-b") if other.try_claim(n)]
mine = Claims()
try:
    read_inventory("3", {}, mine)
except InventoryError:
    print(free())
read_inventory("1", {}, mine)
print(free())
read_inventory("sim:2", {}, mine)
print(mine.try_claim("gpu-SIM-0") and Claims().try_claim("gpu-SIM-1"))
"""


def test_only_the_cards_of_the_run_stay_claimed(nvml_library: Path, tmp_path: Path) -> None:
    machine_of(StubGpu(), StubGpu()).write(tmp_path / "machine")
    assert run_child(CLAIMING, nvml_library.parent, tmp_path / "machine").splitlines() == [
        "['gpu-GPU-a', 'gpu-GPU-b']",
        "['gpu-GPU-b']",
        "True",
    ]


# ---- MIG ----


def mig_machine() -> Machine:
    instances = [Instance("MIG-x", 1, 0), Instance("MIG-y", 2, 0, used_mb=5000, processes=[Process(NO_SUCH_PID)])]
    return machine_of(StubGpu(mig_mode=1, instances=instances), StubGpu(mig_mode=0))


def test_a_card_in_mig_mode_is_its_instances(driver: Driver) -> None:
    inventory = driver.read_inventory(mig_machine())
    assert [(gpu.gpu_id, gpu.index, gpu.is_mig) for gpu in inventory.gpus] == [("MIG-x", 0, True), ("GPU-b", 2, False)]
    assert inventory.gpus[0].model == "NVIDIA Stub MIG 1g.10gb"
    assert inventory.gpus[0].memory_gb == 10.0
    assert inventory.gpus[0].capability == (9, 0)
    assert "5.0 GB" in reasons(inventory)[1]


@pytest.mark.parametrize("value", ["MIG-x", "MIG-GPU-a/1/0"])
def test_a_mig_instance_by_its_name(driver: Driver, value: str) -> None:
    assert ids(driver.read_inventory(mig_machine(), "auto", {"CUDA_VISIBLE_DEVICES": value})) == ["MIG-x"]


# ---- no driver ----


def run_child(code: str, library_directory: Path, file: Path) -> str:
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "LD_LIBRARY_PATH": str(library_directory), "NVML_STUB_FILE": str(file), "PYTHONPATH": root}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


NO_DRIVER = """
from harness.bits.errors import InventoryError
from harness.machine.gpus import read_inventory
print(read_inventory("auto", {}))
for ask in (lambda: read_inventory("2", {}), lambda: read_inventory("0,", {})):
    try:
        print(ask())
    except InventoryError as error:
        print(error.what)
"""


def test_without_a_library_there_are_no_cards(tmp_path: Path) -> None:
    # An unusable file hides whatever driver this machine has.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    note = "no NVIDIA driver here"
    assert run_child(NO_DRIVER, tmp_path, tmp_path).splitlines() == [
        repr(Inventory(note=f"{note}: 0 GPUs")),
        f"--gpus 2: {note}",
        f"--gpus 0,: {note}",
    ]


@pytest.mark.parametrize(
    ("function", "code", "note"),
    [
        ("nvmlInitWithFlags", DRIVER_NOT_LOADED, "no NVIDIA driver here: 0 GPUs"),
        (
            "nvmlInitWithFlags",
            VERSION_MISMATCH,
            "the NVIDIA driver does not answer (RM has detected an NVML/RM version mismatch): 0 GPUs",
        ),
        ("nvmlDeviceGetCount_v2", UNKNOWN, "the NVIDIA driver does not answer (Unknown Error): 0 GPUs"),
    ],
)
def test_a_driver_that_does_not_start_is_said_once(driver: Driver, function: str, code: int, note: str) -> None:
    broken = machine_of(StubGpu(), failures=[(function, -1, code)])
    assert driver.read_inventory(broken) == Inventory(note=note)
    with pytest.raises(InventoryError, match="driver"):
        driver.read_inventory(broken, "1")


# ---- every machine ----

CARDS = st.builds(
    StubGpu,
    used_mb=st.sampled_from([0, 20, 5000]),
    compute_mode=st.sampled_from([0, 0, 2, 3]),
    mig_mode=st.sampled_from([-1, 0]),
    processes=st.lists(st.builds(Process, st.just(NO_SUCH_PID)), max_size=1),
)
FAILURES = st.tuples(
    st.sampled_from(["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"]),
    st.integers(0, 3),
    st.sampled_from([NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN]),
)


@settings(derandomize=True, max_examples=60)
@given(st.lists(CARDS, max_size=4), st.lists(FAILURES, max_size=2), st.lists(st.integers(0, 3), unique=True))
def test_each_visible_card_is_taken_or_left_out(
    driver: Driver, gpus: list[StubGpu], failures: list[tuple[str, int, int]], numbers: list[int]
) -> None:
    machine = machine_of(*gpus, failures=failures)
    lost = {number for function, number, _ in failures if function == "nvmlDeviceGetHandleByIndex_v2"}
    opened = [number for number in range(len(gpus)) if number not in lost]
    visible = []
    for number in numbers:
        if number >= len(opened):
            break
        visible.append(opened[number])
    environ = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}
    inventory = driver.read_inventory(machine, "auto", environ)
    taken = {gpu.index: gpu.gpu_id for gpu in inventory.gpus}
    assert sorted([*taken, *reasons(inventory)]) == list(range(len(visible)))
    for index, gpu_id in taken.items():
        gpu = gpus[visible[index]]
        assert gpu.uuid == gpu_id
        assert gpu.used_mb <= 64
        assert not gpu.processes
        assert gpu.compute_mode != 2
    assert all(reasons(inventory).values())
