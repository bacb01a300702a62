"""GPUs: free, busy or slow; their NVLinks; the driver against what torch was built for."""

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.doctor import probe
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding
from harness.machine.gpu_health import FaultKind, GpuFault, GpuHealth, MachineHealth
from harness.machine.gpus import read_machine
from harness.machine.inventory import Inventory
from harness.process.children import Answer
from harness.process.daemon_thread import in_daemon_thread

READ_S = 40.0
"""Eight GPUs without persistence mode take up to 30 s to wake."""
IMPORT_S = 60.0
"""torch's import from a cold network file system."""
WITH_CAPABILITIES = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
DEVICE_FILE = "/dev/nvidiactl"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
"""What the container toolkit puts into a container: `utility` is NVML, `compute` is CUDA."""
MAX_WARNING_CHARS = 300


class GpuCode(MachineCode):
    """Codes of the driver, the GPUs and torch."""

    # fmt: off
    DRIVER = "driver", FINE, "driver", "NVIDIA {driver}{serves}"
    NO_DRIVER = "no_driver", FINE, "driver", "{problem}: 0 GPUs"
    DRIVER_FAILS = "driver_fails", BROKEN, "driver", """
        {problem}
        breaks: no GPU can be used
        remedy: run nvidia-smi for details; after a driver update, reboot or reload its modules"""
    DRIVER_HANGS = "driver_hangs", BROKEN, "driver", """
        it did not answer within {limit_s} s
        breaks: every process that uses a GPU hangs, and cannot be killed meanwhile
        remedy: dmesg | grep -i -e nvrm -e xid; reboot if it says that a GPU has fallen off the bus"""
    DRIVER_HALF = "driver_half", BROKEN, "driver", f"""
        {DEVICE_FILE} exists, but libnvidia-ml.so.1 does not
        breaks: rlharness and nvidia-smi see no GPU
        remedy: {WITH_CAPABILITIES}"""
    FREE = "free", FINE, "GPUs", "{gpus}, free"
    BUSY = "busy", WARNING, "GPU {number}", """
        {reason}
        breaks: rlharness run leaves it out; programs that select it by number fail or run out of memory
        remedy: end the process that holds it: nvidia-smi -i {gpu} names it"""
    UNUSABLE = "unusable", BROKEN, "GPU {number}", """
        {reason}
        breaks: rlharness run leaves it out; programs that select it by number fail or run out of memory
        remedy: nvidia-smi -q -i {gpu}"""
    LOST = "lost", BROKEN, "GPU {number}", """
        {reason}
        breaks: rlharness run leaves it out; programs that select it by number fail or run out of memory"""
    FAULTY = "faulty", BROKEN, "GPU {number}", """
        {model}: {fault}
        breaks: rlharness run leaves it out; programs that use it crash, or compute with wrong values"""
    SLOW = "slow", WARNING, "GPU {number}", """
        {model}: its clocks are lowered ({slowdowns})
        breaks: tests on it take longer than their history says, and may time out
        remedy: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {number}"""
    VISIBLE = "visible", WARNING, "CUDA_VISIBLE_DEVICES", """
        {note}
        breaks: {effect}
        remedy: unset CUDA_VISIBLE_DEVICES, or list UUIDs (nvidia-smi -L)"""
    LINKS_DOWN = "links_down", WARNING, "NVLink of GPU {number}", """
        {active} of {num_links} links are active; others of its model have {most}
        breaks: transfers to and from it are slower, or go over PCIe: collectives wait for it
        remedy: nvidia-smi nvlink -s -i {number}; reseat its bridge, or reset the GPU"""
    LINKS = "links", FINE, "NVLink", "{links}"
    TORCH = "torch", FINE, "torch", "{torch}"
    TORCH_FAILS = "torch_fails", BROKEN, "torch", """
        {problem}
        breaks: every test that imports torch
        remedy: {python} -c 'import torch' shows the whole error; reinstall torch"""
    TORCH_WITHOUT_CUDA = "torch_without_cuda", BROKEN, "torch", """
        {torch}; {num_gpus} GPUs are free
        breaks: every test that needs a GPU
        remedy: pip install --force-reinstall torch, from an index that has builds for CUDA"""
    TORCH_WITHOUT_GPU = "torch_without_gpu", BROKEN, "torch", """
        {torch}; {driver}{fabric}{said}
        breaks: torch finds no GPU: every test that needs one"""
    TORCH_WITHOUT_KERNELS = "torch_without_kernels", BROKEN, "torch", """
        {torch}; it has kernels for {archs}, and none for compute capability {capabilities}
        breaks: the first kernel on such a GPU: 'no kernel image is available'
        remedy: install a torch built for that GPU"""
    # fmt: on


def check_gpus(host: Host) -> list[MachineFinding]:
    """The driver and the GPUs; torch is asked to use them where there are any."""
    try:
        health, inventory = asyncio.run(in_daemon_thread(lambda: read_machine(host.environ), limit_s=READ_S))
    except TimeoutError:
        return [GpuCode.DRIVER_HANGS(limit_s=f"{READ_S:g}")]
    has_gpus = bool(inventory.gpus or inventory.left_out)
    answers = host.ask(IMPORT_S, (probe.torch_build,), *([(probe.torch_gpus,)] if has_gpus else []))
    driver = classify_driver(health, has_device_file=os.path.exists(DEVICE_FILE))
    torch = classify_torch(answers, health, len(inventory.gpus), host.environ.get(CAPABILITIES))
    return [driver, *classify_gpus(health, inventory), *classify_links(health.gpus), torch]


def classify_driver(health: MachineHealth, *, has_device_file: bool) -> MachineFinding:
    """Whether the driver answers; `has_device_file` says that the kernel's part of NVIDIA's is there."""
    if not health.problem:
        serves = f", serves CUDA up to {_version(health.cuda)}" if health.cuda else ""
        return GpuCode.DRIVER(driver=health.driver or "of unknown version", serves=serves)
    if "no NVIDIA" not in health.problem:
        return GpuCode.DRIVER_FAILS(problem=health.problem)
    return GpuCode.DRIVER_HALF() if has_device_file else GpuCode.NO_DRIVER(problem=health.problem)


def classify_gpus(health: MachineHealth, inventory: Inventory) -> Iterator[MachineFinding]:
    """Each GPU that is not free and well; one finding for the others. Nothing where there are no GPUs."""
    faults = {str(gpu.fault) for gpu in health.gpus if gpu.fault}
    for left_out in inventory.left_out:
        if left_out.reason in faults:
            continue
        named = left_out.gpu_id or str(left_out.index)
        reason = f"{left_out.model}: {left_out.reason}" if left_out.model else left_out.reason
        if "GPU is lost" in left_out.reason:
            remedy = f"{GpuFault(FaultKind.LOST, named).remedy}; dmesg | grep -i xid says why"
            yield GpuCode.LOST(number=left_out.index, reason=reason, remedy=remedy)
        else:
            is_bad = any(words in left_out.reason for words in ("cannot be read", "compute mode", "no instance"))
            code = GpuCode.UNUSABLE if is_bad else GpuCode.BUSY
            yield code(number=left_out.index, gpu=named, reason=reason)
    for gpu in health.gpus:
        if gpu.fault:
            yield GpuCode.FAULTY(number=gpu.number, model=gpu.model, fault=gpu.fault.what, remedy=gpu.fault.remedy)
    for gpu in health.gpus:
        if gpu.slowdowns:
            yield GpuCode.SLOW(number=gpu.number, model=gpu.model, slowdowns=gpu.slowdowns)
    if inventory.note and health.gpus:
        hidden = not inventory.gpus and not inventory.left_out
        effect = "rlharness run --gpus auto finds no GPU" if hidden else "a test may get a different GPU than intended"
        yield GpuCode.VISIBLE(note=inventory.note, effect=effect)
    if inventory.gpus:
        yield GpuCode.FREE(gpus=inventory.describe())


def classify_links(gpus: Sequence[GpuHealth]) -> list[MachineFinding]:
    """Links that are down on some of the GPUs of one model: all of them down is a machine without bridges."""
    linked = [gpu for gpu in gpus if gpu.num_links]
    most = {gpu.model: max(other.num_active_links for other in linked if other.model == gpu.model) for gpu in linked}
    down = [
        GpuCode.LINKS_DOWN(
            number=gpu.number, active=gpu.num_active_links, num_links=gpu.num_links, most=most[gpu.model]
        )
        for gpu in linked
        if gpu.num_active_links < most[gpu.model]
    ]
    if down or not linked:
        return down
    counts = Counter(gpu.num_active_links for gpu in linked)
    links = ", ".join(f"{number} x {active} links" for active, number in counts.items() if active)
    return [GpuCode.LINKS(links=f"{links} active" if links else "not in use: GPUs talk over PCIe")]


def classify_torch(
    answers: Sequence[Answer], health: MachineHealth, num_usable: int, capabilities: str | None = None
) -> MachineFinding:
    """Whether this environment's torch can use the GPUs; `capabilities` is NVIDIA_DRIVER_CAPABILITIES.

    `answers` are those to the steps `torch_build` and, where there are GPUs, `torch_gpus`.
    """
    version, cuda = answers[0].value if answers[0].kind == "ok" else ("", "")
    if answers[-1].kind != "ok":
        problem = f"torch {version}: {answers[-1].value}" if version else answers[-1].value
        return GpuCode.TORCH_FAILS(problem=problem, python=os.path.basename(sys.executable))
    if not version:
        return GpuCode.TORCH(torch="not installed")
    built = f"{version}, built " + (f"for CUDA {cuda}" if cuda else "without CUDA")
    if not num_usable or len(answers) == 1:
        return GpuCode.TORCH(torch=built)
    if not cuda:
        return GpuCode.TORCH_WITHOUT_CUDA(torch=built, num_gpus=num_usable)
    driver = (
        f"the driver serves CUDA up to {_version(health.cuda)}" if health.cuda else "the driver reports no CUDA version"
    )
    is_available, warning, archs = answers[1].value
    if not is_available:
        joined = next((gpu for gpu in health.gpus if gpu.fabric_problem), None)
        fabric = f"; GPU {joined.number} has not joined its NVSwitches: {joined.fabric_problem}" if joined else ""
        said_by_torch = f"; torch reports: {warning[:MAX_WARNING_CHARS]}" if warning else ""
        remedy = _remedy_of_no_gpu(warning, health, capabilities)
        return GpuCode.TORCH_WITHOUT_GPU(torch=built, driver=driver, fabric=fabric, said=said_by_torch, remedy=remedy)
    lacking = sorted({gpu.capability for gpu in health.gpus if not _has_kernels(archs, gpu.capability)})
    if lacking:
        kinds = tuple(map(_version, lacking))
        return GpuCode.TORCH_WITHOUT_KERNELS(torch=built, archs=" ".join(archs), capabilities=kinds)
    return GpuCode.TORCH(torch=f"{built}, finds the GPUs; {driver}")


def _remedy_of_no_gpu(warning: str, health: MachineHealth, capabilities: str | None) -> str:
    """Return the remedy where NVML finds GPUs and torch does not: CUDA's errors, by what each is seen of most."""
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
    for match in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch) for arch in archs)):
        made_for = (int(match[2]), int(match[3]))
        if made_for == capability:
            return True
        if not match[4] and made_for < capability and (match[1] == "compute" or made_for[0] == capability[0]):
            return True
    return False


def _version(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "?"
