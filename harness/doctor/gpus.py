"""GPUs: free, busy or slow; their NVLinks; the driver against what torch was built for."""

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bits.errors import InventoryError
from harness.doctor.host import Answer, Host, module_command
from harness.machine.findings import Finding, Severity
from harness.machine.gpu_health import FaultKind, GpuFault, GpuHealth, MachineHealth
from harness.machine.gpus import read_inventory, read_machine
from harness.machine.inventory import Inventory, LeftOut
from harness.process.daemon_thread import in_daemon_thread

READ_S = 40.0
"""Eight GPUs without persistence mode take up to 30 s to wake."""
WITH_CAPABILITIES = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
IMPORT_S = 60.0
"""torch's import from a cold network file system."""
MIG = "MIG-"
DEVICE_FILE = "/dev/nvidiactl"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
"""What the container toolkit puts into a container: `utility` is NVML, `compute` is CUDA."""
MAX_WARNING_CHARS = 300


@dataclass(frozen=True, slots=True)
class Torch:
    """Output of `torch_facts` on this environment's torch."""

    version: str = ""
    """Empty where torch is not installed."""
    cuda: str = ""
    """CUDA it was built for, "12.8"; empty for a build without."""
    is_available: bool | None = None
    """Whether it finds a GPU; None where it was not asked."""
    warning: str = ""
    """Its own words on why it finds no GPU; empty where it has none."""
    archs: tuple[str, ...] = ()
    """Kinds of GPUs it has kernels for, "sm_90" or, to be compiled, "compute_90"."""
    problem: str = ""
    """Why there is no whole answer; empty where there is one."""


async def inspect_gpus(host: Host) -> Sequence[Finding]:
    """The driver and the GPUs; torch is asked to use them where there are any."""
    try:
        health, inventory = await in_daemon_thread(lambda: read_machine(host.environ), limit_s=READ_S)
    except TimeoutError:
        return [_driver_hangs()]
    words = ("--use",) if inventory.gpus or inventory.left_out else ()
    argv = module_command("harness.doctor.torch_facts", *words)
    torch = read_torch(await host.ask(argv, limit_s=IMPORT_S))
    has_device_file = os.path.exists(DEVICE_FILE)
    findings = check_driver(health, has_device_file=has_device_file)
    findings += check_gpus(health, inventory) + check_links(health.gpus)
    capabilities = host.environ.get(CAPABILITIES)
    return [*findings, *check_torch(torch, health, num_usable=len(inventory.gpus), capabilities=capabilities)]


async def check_gpus_for(num_ranks: int, environ: Mapping[str, str]) -> None:
    """InventoryError where `environ` does not leave a GPU to each of `num_ranks` ranks of NCCL; one in use counts."""
    try:
        inventory = await in_daemon_thread(lambda: read_inventory("auto", environ), limit_s=READ_S)
    except TimeoutError:
        raise InventoryError(
            f"--backend nccl: the GPU driver did not answer within {READ_S:g} s",
            legal="GPUs whose driver answers",
            remedy="rlharness doctor checks the driver; --backend gloo checks the layers that need no GPU",
        ) from None
    gpu_ids = [gpu.gpu_id for gpu in inventory.gpus] + [gpu.gpu_id for gpu in inventory.left_out]
    whole = [gpu_id for gpu_id in gpu_ids if not gpu_id.startswith(MIG)]
    num_gpus = len(whole) or min(1, len(gpu_ids))  # of MIG instances CUDA shows a process no second
    if num_gpus < num_ranks:
        told = [inventory.note] if inventory.note else []
        told += ["a process sees only one MIG instance"] if len(whole) < len(gpu_ids) else []
        why = f" ({'; '.join(told)})" if told else ""
        raise InventoryError(
            f"--distributed {num_ranks} --backend nccl: {num_gpus} of {num_ranks} GPUs are visible{why}",
            legal="a GPU for each rank",
            remedy="--backend gloo checks the layers that need no GPU",
        )


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("version", "cuda", "warning"), str),
    "is_available": bool,
    "archs": list,
}
"""Keys of the lines of `torch_facts`; other lines are those of libraries."""


def read_torch(answer: Answer) -> Torch:
    """Parse the output of `torch_facts`."""
    said: dict[str, Any] = {}
    for line in answer.objects():
        said |= {name: value for name, value in line.items() if isinstance(value, _TYPES.get(name, ()))}
    problem = answer.problem
    if not problem and answer.exit_code != 0:
        problem = " ".join(answer.output.split())[-300:] or f"it exited with {answer.exit_code}"
    return Torch(
        version=said.get("version") or "",
        cuda=said.get("cuda") or "",
        is_available=said.get("is_available"),
        warning=said.get("warning") or "",
        archs=tuple(map(str, said.get("archs", ()))),
        problem=problem,
    )


def check_driver(health: MachineHealth, *, has_device_file: bool) -> list[Finding]:
    """Whether the driver answers; `has_device_file` says that the kernel's part of NVIDIA's is there."""
    if not health.problem:
        cuda = f", serves CUDA up to {_version(health.cuda)}" if health.cuda else ""
        return [Finding("driver", Severity.FINE, f"NVIDIA {health.driver or 'of unknown version'}{cuda}")]
    if not health.has_driver and not has_device_file and "does not answer" not in health.problem:
        return [Finding("driver", Severity.FINE, f"{health.problem}: 0 GPUs")]
    remedy = "run nvidia-smi for details; after a driver update, reboot or reload its modules"
    if has_device_file and "no NVIDIA" in health.problem:
        measured = f"{DEVICE_FILE} exists, but libnvidia-ml.so.1 does not"
        remedy = WITH_CAPABILITIES
        return [Finding("driver", Severity.BROKEN, measured, "rlharness and nvidia-smi see no GPU", remedy)]
    return [Finding("driver", Severity.BROKEN, health.problem, "no GPU can be used", remedy)]


def check_gpus(health: MachineHealth, inventory: Inventory) -> list[Finding]:
    """Each GPU that is not free and well; one finding for the others. Nothing where there are no GPUs."""
    faults = {str(gpu.fault) for gpu in health.gpus if gpu.fault}
    findings = [_left_out(gpu) for gpu in inventory.left_out if gpu.reason not in faults]
    findings += [_faulty(gpu, gpu.fault) for gpu in health.gpus if gpu.fault]
    for gpu in health.gpus:
        if gpu.slowdowns:
            findings.append(
                Finding(
                    f"GPU {gpu.number}",
                    Severity.WARNING,
                    f"{gpu.model}: its clocks are lowered ({', '.join(gpu.slowdowns)})",
                    breaks="tests on it take longer than their history says, and may time out",
                    remedy=f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.number}",
                )
            )
    if inventory.note and health.gpus:
        hidden = not inventory.gpus and not inventory.left_out
        breaks = "rlharness run --gpus auto finds no GPU" if hidden else "a test may get a different GPU than intended"
        remedy = "unset CUDA_VISIBLE_DEVICES, or list UUIDs (nvidia-smi -L)"
        findings.append(Finding("CUDA_VISIBLE_DEVICES", Severity.WARNING, inventory.note, breaks, remedy))
    if inventory.gpus:
        findings.append(Finding("GPUs", Severity.FINE, f"{inventory.describe()}, free"))
    return findings


def check_links(gpus: Sequence[GpuHealth]) -> list[Finding]:
    """Links that are down on some of the GPUs of one model: all of them down is a machine without bridges."""
    findings = []
    linked = [gpu for gpu in gpus if gpu.num_links]
    for gpu in linked:
        most = max(other.num_active_links for other in linked if other.model == gpu.model)
        if gpu.num_active_links < most:
            findings.append(
                Finding(
                    f"NVLink of GPU {gpu.number}",
                    Severity.WARNING,
                    f"{gpu.num_active_links} of {gpu.num_links} links are active; others of its model have {most}",
                    breaks="transfers to and from it are slower, or go over PCIe: collectives wait for it",
                    remedy=f"nvidia-smi nvlink -s -i {gpu.number}; reseat its bridge, or reset the GPU",
                )
            )
    counts = Counter(gpu.num_active_links for gpu in linked)
    if findings or not linked:
        return findings
    links = ", ".join(f"{number} x {active} links" for active, number in counts.items() if active)
    return [Finding("NVLink", Severity.FINE, f"{links} active" if links else "not in use: GPUs talk over PCIe")]


def check_torch(
    torch: Torch, health: MachineHealth, *, num_usable: int, capabilities: str | None = None
) -> list[Finding]:
    """Whether this environment's torch can use the GPUs; `capabilities` is NVIDIA_DRIVER_CAPABILITIES."""
    if torch.problem and not torch.version:
        return [_torch_fails(torch.problem)]
    if not torch.version:
        return [Finding("torch", Severity.FINE, "not installed")]
    if torch.problem:
        return [_torch_fails(f"torch {torch.version}: {torch.problem}")]
    built = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
    measured = f"{torch.version}, built {built}"
    if not num_usable or torch.is_available is None:
        return [Finding("torch", Severity.FINE, measured)]
    if not torch.cuda:
        remedy = "pip install --force-reinstall torch, from an index that has builds for CUDA"
        breaks = "every test that needs a GPU"
        return [Finding("torch", Severity.BROKEN, f"{measured}; {num_usable} GPUs are free", breaks, remedy)]
    served = (
        f"the driver serves CUDA up to {_version(health.cuda)}" if health.cuda else "the driver reports no CUDA version"
    )
    if not torch.is_available:
        breaks = "torch finds no GPU: every test that needs one"
        said = f"; torch reports: {torch.warning[:MAX_WARNING_CHARS]}" if torch.warning else ""
        joined = next((gpu for gpu in health.gpus if gpu.fabric_problem), None)
        fabric = f"; GPU {joined.number} has not joined its NVSwitches: {joined.fabric_problem}" if joined else ""
        remedy = _why_no_gpu(torch, health, capabilities)
        return [Finding("torch", Severity.BROKEN, f"{measured}; {served}{fabric}{said}", breaks, remedy)]
    lacking = sorted({gpu.capability for gpu in health.gpus if not _has_kernels(torch.archs, gpu.capability)})
    if lacking:
        kinds = ", ".join(f"{major}.{minor}" for major, minor in lacking)
        measured = f"{measured}; it has kernels for {' '.join(torch.archs)}, and none for compute capability {kinds}"
        breaks = "the first kernel on such a GPU: 'no kernel image is available'"
        return [Finding("torch", Severity.BROKEN, measured, breaks, "install a torch built for that GPU")]
    return [Finding("torch", Severity.FINE, f"{measured}, finds the GPUs; {served}")]


def _why_no_gpu(torch: Torch, health: MachineHealth, capabilities: str | None) -> str:
    """Return the remedy where NVML finds GPUs and torch does not: CUDA's errors, by what each is seen of most."""
    warning = torch.warning
    if "Error 802" in warning or any(gpu.fabric_problem for gpu in health.gpus):
        version = f" ({health.driver})" if health.driver else ""
        return (
            "systemctl status nvidia-fabricmanager: it must run on the host, and its version must be that of the"
            f" driver{version}; in a virtual machine, the host's must have set up the NVSwitches"
        )
    has_compute = capabilities is None or {"compute", "all"} & set(capabilities.replace(" ", "").split(","))
    if not has_compute or "Found no NVIDIA driver" in warning:
        return WITH_CAPABILITIES
    if any(words in warning for words in ("Error 46", "busy or unavailable")):
        return "end the process that holds the GPU, or lift its exclusive mode: nvidia-smi -c 0"
    if any(words in warning for words in ("Error 999", "Error 304", "unknown error", "OS call failed")):
        return "reload the driver's memory module (rmmod nvidia_uvm; modprobe nvidia_uvm), or reboot"
    return f"update the driver, or install a torch built for CUDA {_version(health.cuda)} or older"


def _has_kernels(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a GPU can run code made for one of `archs` (CUDA C++ Programming Guide, "Binary Compatibility").

    Binary code runs on its own major version and any minor from its own on, compiled code ("compute_") on anything
    newer; code with a letter ("sm_90a") on that very GPU only. An unknown capability, or no list, is no objection.
    """
    if capability == (0, 0) or not archs:
        return True
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
        if match is None:
            continue
        made_for = (int(match[2]), int(match[3]))
        if made_for == capability:
            return True
        if not match[4] and made_for < capability and (match[1] == "compute" or made_for[0] == capability[0]):
            return True
    return False


def _left_out(gpu: LeftOut) -> Finding:
    is_lost = any(words in gpu.reason for words in ("cannot be read", "compute mode", "no instance"))
    named = gpu.gpu_id or str(gpu.index)
    show = f"nvidia-smi -q -i {named}"
    if "GPU is lost" in gpu.reason:
        show = f"{GpuFault(FaultKind.LOST, named).remedy}; dmesg | grep -i xid says why"
    return Finding(
        f"GPU {gpu.index}",
        Severity.BROKEN if is_lost else Severity.WARNING,
        f"{gpu.model}: {gpu.reason}" if gpu.model else gpu.reason,
        breaks="rlharness run leaves it out; programs that select it by number fail or run out of memory",
        remedy=show if is_lost else f"end the process that holds it: nvidia-smi -i {named} names it",
    )


def _faulty(gpu: GpuHealth, fault: GpuFault) -> Finding:
    breaks = "rlharness run leaves it out; programs that use it crash, or compute with wrong values"
    return Finding(f"GPU {gpu.number}", Severity.BROKEN, f"{gpu.model}: {fault.what}", breaks, fault.remedy)


def _driver_hangs() -> Finding:
    return Finding(
        "driver",
        Severity.BROKEN,
        f"it did not answer within {READ_S:g} s",
        breaks="every process that uses a GPU hangs, and cannot be killed meanwhile",
        remedy="dmesg | grep -i -e nvrm -e xid; reboot if it says that a GPU has fallen off the bus",
    )


def _torch_fails(problem: str) -> Finding:
    remedy = f"{os.path.basename(sys.executable)} -c 'import torch' shows the whole error; reinstall torch"
    return Finding("torch", Severity.BROKEN, problem, "every test that imports torch", remedy)


def _version(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "?"
