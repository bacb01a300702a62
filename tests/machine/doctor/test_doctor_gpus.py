"""GPUs, links, the driver against torch: each judgement, and the whole command over the pretended driver."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.gpus import (
    Torch,
    check_driver,
    check_gpus,
    check_links,
    check_torch,
    inspect_gpus,
    read_torch,
)
from harness.doctor.host import Answer, Host, module_command
from harness.machine.findings import Finding, Severity
from harness.machine.gpu_health import GpuHealth, MachineHealth
from harness.machine.inventory import Gpu, Inventory, LeftOut
from tests.support.finding_checks import severities, sound
from tests.support.nvml_stub.build import Instance, Machine, Process, StubGpu, machine_of, stub_env

ROOT = Path(__file__).parents[3]
H200 = "NVIDIA H200"


def health(*gpus: GpuHealth, cuda: tuple[int, int] | None = (12, 8)) -> MachineHealth:
    return MachineHealth("570.86.15", cuda, gpus)


def health_of(number: int = 0, **given: object) -> GpuHealth:
    return GpuHealth(number, f"GPU-{number}", **{"model": H200, "capability": (9, 0), **given})  # type: ignore[arg-type]


def gpu(index: int = 0) -> Gpu:
    return Gpu(f"GPU-{index}", index, H200, 141.0, (9, 0))


# ---- the driver ----


def test_a_driver_that_answers_is_fine() -> None:
    (finding,) = sound(check_driver(health(health_of()), has_device_file=True))
    assert finding.measured == "NVIDIA 570.86.15, serves CUDA up to 12.8"


def test_no_driver_is_fine_where_there_is_none_and_broken_where_half_of_one_is() -> None:
    missing = MachineHealth(problem="no NVIDIA driver here", has_driver=False)
    assert severities(check_driver(missing, has_device_file=False)) == {"driver": "fine"}
    (finding,) = sound(check_driver(missing, has_device_file=True))
    assert finding.severity is Severity.BROKEN
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.remedy


def test_a_driver_that_does_not_answer_breaks() -> None:
    mismatch = "the NVIDIA driver does not answer (Driver/library version mismatch)"
    silent = MachineHealth(problem=mismatch, has_driver=False)
    assert severities(check_driver(silent, has_device_file=False)) == {"driver": "broken"}


# ---- GPUs ----


def test_free_cards_are_fine_and_no_cards_are_nothing() -> None:
    (finding,) = sound(check_gpus(health(health_of(0), health_of(1)), Inventory((gpu(0), gpu(1)))))
    assert (finding.check, finding.measured) == ("GPUs", "2 x NVIDIA H200 141 GB, free")
    assert check_gpus(health(), Inventory(note="no NVIDIA driver here: 0 GPUs")) == []


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
    assert severities(check_gpus(health(health_of(0), health_of(1)), inventory)) == {
        "GPU 1": severity,
        "GPUs": "fine",
    }


def test_a_slow_card() -> None:
    findings = sound(check_gpus(health(health_of(0, slowdowns=("too hot",))), Inventory((gpu(),))))
    assert [finding.measured for finding in findings] == [
        "NVIDIA H200: its clocks are lowered (too hot)",
        "1 x NVIDIA H200 141 GB, free",
    ]


def test_hidden_cards_are_said() -> None:
    note = "CUDA_VISIBLE_DEVICES='': no GPU is visible"
    assert severities(check_gpus(health(health_of()), Inventory(note=note))) == {"CUDA_VISIBLE_DEVICES": "warning"}


# ---- links ----


def test_links_that_are_up_or_absent_everywhere_are_fine() -> None:
    up = [health_of(number, num_links=18, num_active_links=18) for number in range(8)]
    (finding,) = sound(check_links(up))
    assert finding.measured == "8 x 18 links active"
    without_bridges = [health_of(number, num_links=12) for number in range(2)]
    assert severities(check_links(without_bridges)) == {"NVLink": "fine"}
    assert check_links([health_of()]) == []


def test_a_card_with_fewer_links_than_its_sisters() -> None:
    gpus = [health_of(number, num_links=18, num_active_links=18 - 6 * (number == 2)) for number in range(4)]
    (finding,) = sound(check_links(gpus))
    assert finding.check == "NVLink of GPU 2"
    assert finding.measured == "12 of 18 links are active; others of its model have 18"
    mixed = [
        health_of(0, num_links=18, num_active_links=18),
        health_of(1, num_links=4, num_active_links=4, model="NVIDIA A30"),
    ]
    assert severities(check_links(mixed)) == {"NVLink": "fine"}


# ---- torch ----

CUDA_TORCH = Torch("2.11.0+cu128", "12.8", is_available=True, archs=("sm_80", "sm_90", "compute_90"))


def torch_findings(torch: Torch, capability: tuple[int, int] = (9, 0), num_usable: int = 1) -> list[Finding]:
    return sound(check_torch(torch, health(health_of(capability=capability)), num_usable=num_usable))


def test_a_torch_that_finds_the_cards() -> None:
    (finding,) = torch_findings(CUDA_TORCH)
    assert finding.measured == ("2.11.0+cu128, built for CUDA 12.8, finds the GPUs; the driver serves CUDA up to 12.8")


@pytest.mark.parametrize(
    ("torch", "num_usable", "severity", "said"),
    [
        (Torch(), 8, "fine", "not installed"),
        (Torch("2.13.0+cpu"), 0, "fine", "built without CUDA"),
        (Torch("2.13.0+cu130", "13.0"), 0, "fine", "built for CUDA 13.0"),
        (Torch("2.13.0+cpu", is_available=False), 8, "broken", "built without CUDA; 8 GPUs are free"),
        (Torch("2.13.0+cu130", "13.0", is_available=False), 1, "broken", "the driver serves CUDA up to 12.8"),
        (Torch(problem="no answer within 60 s"), 0, "broken", "no answer within 60 s"),
        (Torch("2.13.0", problem="libcudart.so.13: cannot open"), 1, "broken", "torch 2.13.0: libcudart.so.13"),
    ],
)
def test_torch_by_what_it_is_and_finds(torch: Torch, num_usable: int, severity: str, said: str) -> None:
    (finding,) = torch_findings(torch, num_usable=num_usable)
    assert finding.severity.value == severity
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
    (finding,) = torch_findings(Torch("2", "12.8", is_available=True, archs=archs), capability)
    assert (finding.severity is Severity.FINE) is has_kernels


@given(st.integers(5, 12), st.integers(0, 9))
def test_code_made_for_the_card_itself_always_runs(major: int, minor: int) -> None:
    torch = Torch("2", "12.8", is_available=True, archs=(f"sm_{major}{minor}",))
    assert torch_findings(torch, (major, minor))[0].severity is Severity.FINE


def test_what_torch_says_is_read_past_its_warnings() -> None:
    output = '{"version": "2.13.0", "cuda": "13.0"}\nUserWarning: old driver\n'
    output += '{"is_available": false, "archs": []}\n'
    assert read_torch(Answer(output)) == Torch("2.13.0", "13.0", is_available=False)
    assert read_torch(Answer("{}\n")) == Torch()
    assert read_torch(Answer("Traceback\nOSError: libgomp", 1)).problem == "Traceback OSError: libgomp"


def test_this_environments_torch_is_asked_without_importing_it() -> None:
    command = module_command("harness.doctor.torch_facts")
    done = subprocess.run([*command, "-v"], capture_output=True, text=True, check=True)
    torch = read_torch(Answer(done.stdout))
    installed = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('torch'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert torch.version == installed.stdout.strip()
    assert torch.is_available is None


# ---- all of it, over the pretended driver ----


def doctor_of(machine: Machine, nvml_library: Path, tmp_path: Path, **environ: str) -> dict[str, Finding]:
    """What the checks of the GPUs find in a process that has the pretended driver."""
    machine.write(tmp_path / "machine")
    return findings_with(**stub_env(nvml_library, tmp_path / "machine"), **environ)


def findings_with(torch: str = "{}", **environ: str) -> dict[str, Finding]:
    """What the checks of the GPUs find in a process of these variables, where torch answers `torch`."""
    code = (
        "import asyncio, json, os\nfrom dataclasses import astuple\nfrom pathlib import Path\n"
        "from harness.doctor.gpus import inspect_gpus\nfrom harness.doctor.host import Answer, Host\n"
        f"async def ask(argv, *, limit_s): return Answer({torch!r})\n"
        "found = asyncio.run(inspect_gpus(Host(dict(os.environ), Path('/'), ask)))\n"
        "print(json.dumps([astuple(f)[0:1] + (f.severity.value,) + astuple(f)[2:5] for f in found]))"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    env = {**own, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    return {row[0]: Finding(row[0], Severity(row[1]), *row[2:]) for row in rows}


def test_a_machine_in_order(nvml_library: Path, tmp_path: Path) -> None:
    found = doctor_of(machine_of(*(StubGpu(links=["0"] * 4) for _ in range(4))), nvml_library, tmp_path)
    assert {finding.severity for finding in sound(found.values())} == {Severity.FINE}
    assert found["NVLink"].measured == "4 x 4 links active"


def test_a_machine_out_of_order(nvml_library: Path, tmp_path: Path) -> None:
    gpus = [
        StubGpu(links=["0"] * 4, slow=0x40),
        StubGpu(links=["0"] * 2, idle_links=2, used_mb=9000, processes=[Process(2**31)]),
        StubGpu(),
    ]
    machine = machine_of(*gpus, failures=[("nvmlDeviceGetMemoryInfo_v2", 2, 15)])
    found = doctor_of(machine, nvml_library, tmp_path)
    assert severities(found.values()) == {
        "driver": "fine",
        "GPU 0": "warning",
        "GPU 1": "warning",
        "GPU 2": "broken",
        "GPUs": "fine",
        "NVLink of GPU 1": "warning",
        "torch": "fine",
    }
    assert "far too hot" in found["GPU 0"].measured
    assert "busy: 9.0 GB" in found["GPU 1"].measured
    assert found["GPU 2"].measured == "NVIDIA Stub: cannot be read: GPU is lost"


def test_gpus_with_faults(nvml_library: Path, tmp_path: Path) -> None:
    gpus = [StubGpu(uncorrected=2), StubGpu(remap_failed=True), StubGpu(), StubGpu()]
    machine = machine_of(*gpus, failures=[("nvmlDeviceGetUUID", 2, 15)])
    found = doctor_of(machine, nvml_library, tmp_path)
    broken = {finding.check: finding for finding in sound(found.values()) if finding.severity is Severity.BROKEN}
    assert list(broken) == ["GPU 2", "GPU 0", "GPU 1"]
    assert "2 uncorrected errors" in broken["GPU 0"].measured
    assert "nvidia-smi --gpu-reset -i GPU-a" in broken["GPU 0"].remedy
    assert broken["GPU 1"].remedy == "have it replaced"
    assert "reboot the machine" in broken["GPU 2"].remedy


def test_without_a_driver_torch_is_not_imported() -> None:
    asked: list[Sequence[str]] = []

    async def ask(argv: Sequence[str], *, limit_s: float) -> Answer:
        asked.append(argv)
        return Answer('{"version": "2.13.0+cpu", "cuda": null}')

    findings = sound(asyncio.run(inspect_gpus(Host({"CUDA_VISIBLE_DEVICES": ""}, Path("/"), ask))))
    assert "torch" in {finding.check for finding in findings}
    assert "--use" not in asked[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("gpus", "visible", "said"),
    [
        ([StubGpu(), StubGpu()], None, ""),
        ([StubGpu(), StubGpu(used_mb=9000, processes=[Process(2**31)])], None, ""),
        ([StubGpu(), StubGpu()], "1", "1 of 2 GPUs are visible"),
        ([StubGpu(), StubGpu()], "0,7", "1 of 2 GPUs are visible (CUDA_VISIBLE_DEVICES='0,7': CUDA stops at '7'"),
        (
            [StubGpu(mig_mode=1, instances=[Instance("MIG-1"), Instance("MIG-2", 2)])],
            None,
            "1 of 2 GPUs are visible (a process sees only one MIG instance)",
        ),
    ],
)
def test_nccl_wants_a_card_a_rank(
    gpus: list[StubGpu], visible: str | None, said: str, nvml_library: Path, tmp_path: Path
) -> None:
    machine_of(*gpus).write(tmp_path / "machine")
    code = (
        "import asyncio, os\nfrom harness.bits.errors import InventoryError\n"
        "from harness.doctor.gpus import check_gpus_for\n"
        "try: asyncio.run(check_gpus_for(2, dict(os.environ)))\nexcept InventoryError as error: print(error)"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    env = {**own, **stub_env(nvml_library, tmp_path / "machine"), "PYTHONPATH": str(ROOT), **given}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"--distributed 2 --backend nccl: {said}" if said else "")
    assert bool(done.stdout) is bool(said)
