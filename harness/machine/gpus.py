"""The machine's GPUs, read through NVML.

NVML's order is the PCI bus order; inside the harness a GPU is its UUID. What NVML does not report (NOT_SUPPORTED and
the like) is unknown; a GPU that answers with an error (fallen off the bus, reset required) is left out with NVML's
message and never ends the run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.core.errors import InventoryError
from harness.machine.gpu_selection import Auto, Count, Named, Pretended, find_named, parse_selection
from harness.machine.inventory import Gpu, Inventory, LeftOut
from harness.machine.meter import IDLE_MEMORY_BYTES, GpuProcess
from harness.machine.nvml import (
    NoDriverError,
    ask,
    compute_processes,
    display_bytes,
    linked_bus_ids,
    memory_of,
    no_answer,
    nvml_opened,
    open_nvml,
    shut_down,
    unreadable,
)
from harness.machine.visible import ORDER_NOTE, Device, Visible, order_is_uncertain, visible_devices
from harness.process.claims import Claims, holder_pid

_MAX_NAMED_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class _GpuHandle:
    """A device as NVML lists it."""

    device: Device
    handle: Any
    """NVML's handle of the GPU or instance; None where there is none."""
    gpu_handle: Any
    """NVML's handle of the whole GPU."""
    problem: str = ""
    """Why it cannot be used; empty where nothing is known against it."""


def read_inventory(selection: str, environ: Mapping[str, str], claims: Claims | None = None) -> Inventory:
    """The GPUs a run may lease, as `selection` (the text of --gpus, see `selection`) asks for them.

    Within CUDA_VISIBLE_DEVICES of `environ`; busy, unreadable and prohibited GPUs are left out, each with its reason.
    Each GPU taken is claimed in `claims` as "gpu-<uuid>"; pretended GPUs are not. Raises UsageError for a text of no
    legal form, InventoryError where fewer GPUs are free than were counted, or a GPU asked for by name cannot be had.
    """
    asked = parse_selection(selection)
    if isinstance(asked, Pretended):
        return Inventory(gpus=asked.gpus, pretended=True)
    if asked == Count(0):
        return Inventory()
    try:
        with nvml_opened() as nvml:
            return _take(nvml, asked, environ, claims)
    except NoDriverError as error:
        if isinstance(asked, Auto):
            return Inventory(note=f"{error}: 0 GPUs")
        raise InventoryError(
            f"--gpus {selection}: {error}",
            legal="auto (every free GPU, here 0), none, sim:N",
            remedy="rlharness run --gpus none runs what needs no GPU; --gpus sim:N pretends N",
        ) from error


class NvmlMeter:
    """Memory and processes of real GPUs; opens NVML at once and keeps it open until `close`.

    A driver that does not start raises InventoryError.
    """

    def __init__(self) -> None:
        try:
            self._nvml = open_nvml()
        except NoDriverError as error:
            raise InventoryError(str(error), legal="a machine whose NVIDIA driver runs") from error

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        used_bytes = {}
        for gpu_id in gpu_ids:
            with suppress(self._nvml.NVMLError):
                memory = memory_of(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id))
                if memory is not None:
                    used_bytes[gpu_id] = memory[1]
        return used_bytes

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        try:
            return compute_processes(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id))
        except self._nvml.NVMLError:
            return ()

    def close(self) -> None:
        shut_down(self._nvml)


# ---- choosing ----


def _take(nvml: Any, asked: Auto | Count | Named, environ: Mapping[str, str], claims: Claims | None) -> Inventory:
    gpus = _list_gpus(nvml)
    devices = [gpu.device for gpu in gpus]
    visible = visible_devices(devices, environ)
    mine = [gpus[devices.index(device)] for device in visible.devices]
    wanted = find_named(asked, visible.devices) if isinstance(asked, Named) else range(len(mine))
    num_wanted = asked.num_gpus if isinstance(asked, Count) else len(mine)
    taken: list[Gpu] = []
    left_out: list[LeftOut] = []
    for index in wanted:
        if len(taken) == num_wanted:
            break
        found = _examine(nvml, mine[index], index)
        if isinstance(found, Gpu):
            found = _claim(found, claims)
        if isinstance(found, Gpu):
            taken.append(found)
        else:
            left_out.append(found)
    if (isinstance(asked, Count) and len(taken) < num_wanted) or (isinstance(asked, Named) and left_out):
        if claims is not None:
            for gpu in taken:
                claims.release(_claim_name(gpu.gpu_id))
        raise _too_few(asked, len(taken), len(mine), left_out)
    return Inventory(
        gpus=tuple(taken),
        left_out=tuple(left_out),
        num_links=_num_links(nvml, [gpu for gpu in taken if not gpu.is_mig]),
        note="; ".join(_notes(visible, asked, devices, environ)),
    )


def _notes(
    visible: Visible, asked: Auto | Count | Named, devices: Sequence[Device], environ: Mapping[str, str]
) -> list[str]:
    notes = list(visible.notes)
    by_position = isinstance(asked, Named) and asked.has_positions
    if by_position and visible.by_number and ORDER_NOTE not in notes and order_is_uncertain(devices, environ):
        notes.append(ORDER_NOTE)
    return notes


def _too_few(asked: Count | Named, num_taken: int, num_visible: int, left_out: Sequence[LeftOut]) -> InventoryError:
    reasons = "; ".join(f"GPU {gpu.index} ({gpu.model}): {gpu.reason}" for gpu in left_out)
    if isinstance(asked, Named):
        what = f"--gpus {','.join(asked.names)}: {reasons}"
    else:
        what = f"--gpus {asked.num_gpus}: {num_taken} of the {num_visible} GPUs this process was given are free"
        what += f"; {reasons}" if reasons else ""
    return InventoryError(
        what,
        legal="GPUs that are free",
        remedy="--gpus auto uses every free GPU; or wait, or end the processes that hold them",
    )


def _examine(nvml: Any, gpu: _GpuHandle, index: int) -> Gpu | LeftOut:
    """The GPU as it may be leased, or why it cannot be now."""
    device = gpu.device
    try:
        if reason := gpu.problem or _why_busy(nvml, gpu):
            return LeftOut(device.uuid, index, device.model, reason)
        memory = memory_of(nvml, gpu.handle)
        return Gpu(
            gpu_id=device.uuid,
            index=index,
            model=nvml.nvmlDeviceGetName(gpu.handle),
            memory_gb=memory[0] / 1e9 if memory else 0.0,
            capability=ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, gpu.gpu_handle) or (0, 0),
            is_mig=bool(device.old_mig_name),
            number=None if device.old_mig_name else device.ordinal,
        )
    except nvml.NVMLError as error:
        return LeftOut(device.uuid, index, device.model, unreadable(error))


def _why_busy(nvml: Any, gpu: _GpuHandle) -> str:
    """What keeps a readable GPU from being leased, or nothing; an NVMLError is the caller's."""
    if ask(nvml, nvml.nvmlDeviceGetComputeMode, gpu.gpu_handle) == nvml.NVML_COMPUTEMODE_PROHIBITED:
        return "its compute mode is Prohibited (nvidia-smi -c 0 resets it)"
    memory = memory_of(nvml, gpu.handle)
    used_bytes = memory[1] if memory else 0
    processes = compute_processes(nvml, gpu.handle)
    if processes:
        named = ", ".join(str(process) for process in processes[:_MAX_NAMED_PROCESSES])
        if len(processes) > _MAX_NAMED_PROCESSES:
            named += f" and {len(processes) - _MAX_NAMED_PROCESSES} more"
        return f"busy: {used_bytes / 1e9:.1f} GB held by {named}"
    if used_bytes - display_bytes(nvml, gpu.handle) > IDLE_MEMORY_BYTES:
        return f"busy: {used_bytes / 1e9:.1f} GB in use, by no process that NVML lists (another container?)"
    return ""


def _claim(gpu: Gpu, claims: Claims | None) -> Gpu | LeftOut:
    """Takes the GPU for this run; why that was refused, where it was."""
    name = _claim_name(gpu.gpu_id)
    if claims is None or claims.try_claim(name):
        return gpu
    pid = holder_pid(name)
    reason = "leased by another rlharness run" + (f" (pid {pid})" if pid else "")
    return LeftOut(gpu.gpu_id, gpu.index, gpu.model, reason)


def _claim_name(gpu_id: str) -> str:
    return f"gpu-{gpu_id}"


# ---- reading ----


def _list_gpus(nvml: Any) -> list[_GpuHandle]:
    """Every GPU of the machine in NVML's order, a GPU in MIG mode as its instances."""
    gpus: list[_GpuHandle] = []
    try:
        num_gpus = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise NoDriverError(no_answer(error)) from error
    for ordinal in range(num_gpus):
        device = Device(ordinal, "", "", "")
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            device = Device(ordinal, uuid, uuid, nvml.nvmlDeviceGetName(handle))
            gpus += _instances(nvml, device, handle) or [_GpuHandle(device, handle, handle)]
        except nvml.NVMLError as error:
            gpus.append(_GpuHandle(device, None, None, unreadable(error)))
    return gpus


def _instances(nvml: Any, gpu: Device, handle: Any) -> list[_GpuHandle]:
    """The MIG instances of `gpu`; empty where it is not in MIG mode."""
    mode = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return []
    instances = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound):
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            gi, ci = nvml.nvmlDeviceGetGpuInstanceId(instance), nvml.nvmlDeviceGetComputeInstanceId(instance)
            uuid = nvml.nvmlDeviceGetUUID(instance)
            device = Device(gpu.ordinal, gpu.gpu_uuid, uuid, gpu.model, f"MIG-{gpu.gpu_uuid}/{gi}/{ci}")
            instances.append(_GpuHandle(device, instance, handle))
    return instances or [_GpuHandle(gpu, handle, handle, "its MIG mode is on and it has no instance")]


def _num_links(nvml: Any, gpus: Iterable[Gpu]) -> dict[frozenset[str], int]:
    """Active NVLinks between each two of `gpus`, whole GPUs all; links that end in an NVSwitch count for no pair.

    With NVSwitches every pair is equally near, so none is preferred.
    """
    handles: dict[str, Any] = {}
    gpu_ids: dict[bytes, str] = {}
    for gpu in gpus:
        with suppress(nvml.NVMLError):
            handles[gpu.gpu_id] = nvml.nvmlDeviceGetHandleByUUID(gpu.gpu_id)
            gpu_ids[nvml.nvmlDeviceGetPciInfo(handles[gpu.gpu_id]).busId.lower()] = gpu.gpu_id
    num_links: dict[frozenset[str], int] = {}
    for gpu_id, handle in handles.items():
        peers = Counter(gpu_ids.get(bus_id) for bus_id in linked_bus_ids(nvml, handle))
        for other, count in peers.items():
            if other is not None and other != gpu_id:
                pair = frozenset((gpu_id, other))
                num_links[pair] = max(count, num_links.get(pair, 0))  # both ends report each link
    return num_links
