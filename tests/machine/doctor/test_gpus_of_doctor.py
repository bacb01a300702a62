"""GPUs, links, the driver against torch: each judgement, and the whole command over the pretended driver."""

import json
import os
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.bits.findings import Severity
from harness.doctor import gpus, probe
from harness.doctor.gpus import check_gpus, classify_driver, classify_gpus, classify_links, classify_torch
from harness.doctor.host import Host, open_probes
from harness.machine.findings import MachineFinding
from harness.machine.gpu_health import GpuHealth, MachineHealth
from harness.machine.inventory import Gpu, Inventory, LeftOut
from harness.process.children import Answer
from harness.process.invocation import Invocation
from tests.support.finding_checks import severities, sound
from tests.support.nvml_stub.build import Machine, Process, StubGpu, machine_of, stub_env

ROOT = Path(__file__).parents[3]
H200 = "NVIDIA H200"


def health(*gpus: GpuHealth, cuda: tuple[int, int] | None = (12, 8)) -> MachineHealth:
    return MachineHealth("570.86.15", cuda, gpus)


def health_of(number: int = 0, **given: object) -> GpuHealth:
    return GpuHealth(number, f"GPU-{number}", **{"model": H200, "capability": (9, 0), **given})  # type: ignore[arg-type]


def gpu(index: int = 0) -> Gpu:
    return Gpu(f"GPU-{index}", index, H200, 141.0, (9, 0))


# ---- the driver ----


def test_no_driver_is_fine_where_there_is_none_and_broken_where_half_of_one_is() -> None:
    missing = MachineHealth(problem="no NVIDIA driver here")
    assert severities([classify_driver(missing, has_device_file=False)]) == {"driver": "fine"}
    (finding,) = sound([classify_driver(missing, has_device_file=True)])
    assert finding.severity is Severity.BROKEN
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.remedy


def test_a_driver_that_does_not_answer_breaks() -> None:
    mismatch = "the NVIDIA driver does not answer (Driver/library version mismatch)"
    silent = MachineHealth(problem=mismatch)
    assert severities([classify_driver(silent, has_device_file=False)]) == {"driver": "broken"}


# ---- GPUs ----


@pytest.mark.parametrize(
    ("reason", "severity"),
    [
        ("busy: 12.3 GB held by pid 4711 (python train.py)", "warning"),
        ("leased by another rlharness run (pid 7)", "warning"),
        ("cannot be read: GPU is lost", "broken"),
        ("its compute mode is Prohibited (nvidia-smi -c 0 resets it)", "broken"),
        ("its MIG mode is on and it has no instance", "broken"),
    ],
)
def test_a_card_that_is_left_out(reason: str, severity: str) -> None:
    inventory = Inventory((gpu(0),), (LeftOut("GPU-1", 1, H200, reason),))
    assert severities(classify_gpus(health(health_of(0), health_of(1)), inventory)) == {
        "GPU 1": severity,
        "GPUs": "fine",
    }


def test_hidden_cards_are_said() -> None:
    note = "CUDA_VISIBLE_DEVICES='': no GPU is visible"
    assert severities(classify_gpus(health(health_of()), Inventory(note=note))) == {"CUDA_VISIBLE_DEVICES": "warning"}


# ---- links ----


def test_links_that_are_up_or_absent_everywhere_are_fine() -> None:
    up = [health_of(number, num_links=18, num_active_links=18) for number in range(8)]
    (finding,) = sound(classify_links(up))
    assert finding.measured == "8 x 18 links active"
    without_bridges = [health_of(number, num_links=12) for number in range(2)]
    assert severities(classify_links(without_bridges)) == {"NVLink": "fine"}
    assert classify_links([health_of()]) == []


def test_a_card_with_fewer_links_than_its_sisters() -> None:
    four = [health_of(number, num_links=18, num_active_links=18 - 6 * (number == 2)) for number in range(4)]
    (finding,) = sound(classify_links(four))
    assert finding.check == "NVLink of GPU 2"
    assert finding.measured == "12 of 18 links are active; others of its model have 18"
    mixed = [
        health_of(0, num_links=18, num_active_links=18),
        health_of(1, num_links=4, num_active_links=4, model="NVIDIA A30"),
    ]
    assert severities(classify_links(mixed)) == {"NVLink": "fine"}


# ---- torch ----

COUNT = "CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
Use = tuple[bool, str, list[str]]
ARCHS = ["sm_80", "sm_90", "compute_90"]
FOUND, BLIND = (True, "", ARCHS), (False, "", ARCHS)


def torch_finding(
    version: str = "2.11.0+cu128",
    cuda: str = "12.8",
    use: Use | None = FOUND,
    *,
    machine: MachineHealth | None = None,
    num_usable: int = 1,
    capabilities: str | None = None,
) -> MachineFinding:
    answers = [Answer("ok", (version, cuda)), *([Answer("ok", use)] if use else [])]
    (finding,) = sound([classify_torch(answers, machine or health(health_of()), num_usable, capabilities)])
    return finding


def test_a_torch_that_finds_the_cards() -> None:
    finding = torch_finding()
    assert finding.measured == "2.11.0+cu128, built for CUDA 12.8, finds the GPUs; the driver serves CUDA up to 12.8"


@pytest.mark.parametrize(
    ("version", "cuda", "use", "num_usable", "severity", "said"),
    [
        ("", "", None, 8, "fine", "not installed"),
        ("2.13.0+cpu", "", None, 0, "fine", "built without CUDA"),
        ("2.13.0+cu130", "13.0", None, 0, "fine", "built for CUDA 13.0"),
        ("2.13.0+cpu", "", BLIND, 8, "broken", "built without CUDA; 8 GPUs are free"),
        ("2.13.0+cu130", "13.0", BLIND, 1, "broken", "the driver serves CUDA up to 12.8"),
    ],
)
def test_torch_by_what_it_is_and_finds(
    version: str, cuda: str, use: Use | None, *, num_usable: int, severity: str, said: str
) -> None:
    finding = torch_finding(version, cuda, use, num_usable=num_usable)
    assert (finding.severity.value, said in finding.measured) == (severity, True)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([Answer("late", "no answer within 60 s")], "no answer within 60 s"),
        ([Answer("ok", ("2.13.0", "13.0")), Answer("failed", "OSError: libgomp")], "torch 2.13.0: OSError: libgomp"),
    ],
)
def test_a_torch_that_fails(answers: list[Answer], said: str) -> None:
    (finding,) = sound([classify_torch(answers, health(health_of()), 1)])
    assert said in finding.measured


@pytest.mark.parametrize(
    ("archs", "capability", "has_kernels"),
    [
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("sm_80", "compute_80"), (9, 0), True),
        (("compute_90",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_120",), (12, 1), True),
        ((), (9, 0), True),
        (("sm_50",), (0, 0), True),
        (("gfx942",), (9, 0), False),
    ],
)
def test_kernels_for_a_card(archs: tuple[str, ...], capability: tuple[int, int], has_kernels: bool) -> None:
    finding = torch_finding(use=(True, "", list(archs)), machine=health(health_of(capability=capability)))
    assert (finding.severity is Severity.FINE) is has_kernels


@pytest.mark.parametrize(
    ("warning", "capabilities", "remedy"),
    [
        (f"{COUNT}Error 802: system not yet initialized", None, "nvidia-fabricmanager"),
        (f"{COUNT}Error 46: all CUDA-capable devices are busy or unavailable", None, "nvidia-smi -c 0"),
        (f"{COUNT}Error 999: unknown error", "all", "nvidia_uvm"),
        ("CUDA initialization: Found no NVIDIA driver on your system.", None, "NVIDIA_DRIVER_CAPABILITIES"),
        ("", "utility", "NVIDIA_DRIVER_CAPABILITIES"),
        ("", "compute,utility", "update the driver"),
    ],
)
def test_the_remedy_for_a_torch_without_gpus_follows_its_own_words(
    warning: str, capabilities: str | None, remedy: str
) -> None:
    finding = torch_finding(use=(False, warning, ARCHS), capabilities=capabilities)
    assert (finding.severity, remedy in finding.remedy, warning in finding.measured) == (Severity.BROKEN, True, True)


def test_a_gpu_that_has_not_joined_its_switches_explains_a_blind_torch_and_is_no_alarm_by_itself() -> None:
    apart = health(health_of(fabric_problem="it has not been started"))
    finding = torch_finding(use=BLIND, machine=apart)
    assert "GPU 0 has not joined its NVSwitches: it has not been started" in finding.measured
    assert "nvidia-fabricmanager" in finding.remedy
    assert torch_finding(machine=apart).severity is Severity.FINE


def test_this_environments_torch_is_asked_without_importing_it(tmp_path: Path) -> None:
    with open_probes(Invocation(tmp_path, dict(os.environ))) as probes:
        (built,) = probes.ask(20.0, (probe.torch_build,))
    assert built.value[0] == version("torch")
    code = "import sys; from harness.doctor import probe; probe.torch_build(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


# ---- all of it, over the pretended driver ----


def doctor_of(machine: Machine, nvml_library: Path, tmp_path: Path, **environ: str) -> dict[str, dict[str, str]]:
    """What the checks of the GPUs find in a process that has the pretended driver."""
    machine.write(tmp_path / "machine")
    return findings_with(**stub_env(nvml_library, tmp_path / "machine"), **environ)


def findings_with(**environ: str) -> dict[str, dict[str, str]]:
    """What the checks of the GPUs find in a process of these variables, without torch."""
    code = (
        "import json, os\n"
        "from harness.doctor.gpus import check_gpus\nfrom harness.doctor.host import Host\n"
        "from harness.process.children import Answer\nfrom harness.render.findings import findings_json\n"
        "found = check_gpus(Host(dict(os.environ), lambda *_: [Answer('ok', ('', ''))]))\n"
        "print(json.dumps(findings_json(found, exit_code=0, took_s=0)))"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    env = {**own, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return {each["check"]: each for each in json.loads(done.stdout)["findings"]}


def test_a_machine_in_order(nvml_library: Path, tmp_path: Path) -> None:
    found = doctor_of(machine_of(*(StubGpu(links=["0"] * 4) for _ in range(4))), nvml_library, tmp_path)
    assert {finding["severity"] for finding in found.values()} == {"fine"}
    assert found["NVLink"]["measured"] == "4 x 4 links active"


def test_a_machine_out_of_order(nvml_library: Path, tmp_path: Path) -> None:
    stubs = [
        StubGpu(links=["0"] * 4, slow=0x40),
        StubGpu(links=["0"] * 2, idle_links=2, used_mb=9000, processes=[Process(2**31)]),
        StubGpu(),
    ]
    machine = machine_of(*stubs, failures=[("nvmlDeviceGetMemoryInfo_v2", 2, 15)])
    found = doctor_of(machine, nvml_library, tmp_path)
    assert {check: each["severity"] for check, each in found.items()} == {
        "driver": "fine",
        "GPU 0": "warning",
        "GPU 1": "warning",
        "GPU 2": "broken",
        "GPUs": "fine",
        "NVLink of GPU 1": "warning",
        "torch": "fine",
    }
    assert "far too hot" in found["GPU 0"]["measured"]
    assert "busy: 9.0 GB" in found["GPU 1"]["measured"]
    assert found["GPU 2"]["measured"] == "NVIDIA Stub: cannot be read: GPU is lost"


def test_gpus_with_faults(nvml_library: Path, tmp_path: Path) -> None:
    stubs = [StubGpu(uncorrected=2), StubGpu(remap_failed=True), StubGpu(), StubGpu()]
    machine = machine_of(*stubs, failures=[("nvmlDeviceGetUUID", 2, 15)])
    found = doctor_of(machine, nvml_library, tmp_path)
    broken = {check: each for check, each in found.items() if each["severity"] == "broken"}
    assert list(broken) == ["GPU 2", "GPU 0", "GPU 1"]
    assert "2 uncorrected errors" in broken["GPU 0"]["measured"]
    assert "nvidia-smi --gpu-reset -i GPU-a" in broken["GPU 0"]["remedy"]
    assert broken["GPU 1"]["remedy"] == "have it replaced"
    assert "reboot the machine" in broken["GPU 2"]["remedy"]


def test_a_driver_that_hangs_is_named_and_costs_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(gpus, "read_machine", lambda environ: let_go.wait())
    monkeypatch.setattr(gpus, "READ_S", 0.05)
    (finding,) = sound(check_gpus(Host({}, lambda *_: [])))
    let_go.set()
    assert (finding.severity, finding.measured) == (Severity.BROKEN, "it did not answer within 0.05 s")


def test_without_a_driver_torch_is_not_imported() -> None:
    asked: list[tuple[object, ...]] = []

    def ask(limit_s: float, *steps: tuple[object, ...]) -> list[Answer]:
        asked.extend(steps)
        return [Answer("ok", ("2.13.0+cpu", ""))]

    findings = sound(check_gpus(Host({"CUDA_VISIBLE_DEVICES": ""}, ask)))
    assert "torch" in {finding.check for finding in findings}
    assert asked == [(probe.torch_build,)]
