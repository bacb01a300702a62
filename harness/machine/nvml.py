"""GPUs of NVIDIA, read through NVML: the only file that imports pynvml.

NVML's order is the PCI bus order; inside the harness a GPU is its UUID. What NVML does not report (NOT_SUPPORTED and
the like) is unknown; a GPU that answers with an error (fallen off the bus, reset required) is left out with NVML's
message and never ends the run. Calls block for as long as the driver does.
"""

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pynvml as nvml

from harness.bits.redaction import redact_argv
from harness.machine.gpu_health import FaultKind, GpuFault, GpuHealth, GpuProcess, MachineHealth, Meter
from harness.machine.gpu_selection import UNOPENED, Device
from harness.machine.inventory import IDLE_MEMORY_BYTES, Gpu, LeftOut

SLOWDOWNS = {  # nvml.h, nvmlClocksEventReasons: those that no load explains
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot",
    "nvmlClocksEventReasonHwThermalSlowdown": "far too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "slowed by the power supply",
}
"""Without the power cap, which a GPU under load reaches by design."""
DESKTOP_IDLE_BYTES = 2 * 10**9
"""Memory that an idle GPU may show with a display or under WSL: images on the screen, and Windows with its programs,
belong to no process that the driver lists."""
WSL_DEVICE = "/dev/dxg"
"""Windows' driver, for the Linux beside it."""
MPS_SERVER = "nvidia-cuda-mps-server"
MAX_COMMAND_CHARS = 60
MAX_NAMED_PROCESSES = 3
MAX_XIDS = 1000
"""Errors read at a time: a GPU that reports without end must not keep us here."""
FABRIC_TROUBLE = {1: "it has not been started", 2: "it is still coming up"}
"""By NVML_GPU_FABRIC_STATE_*; 0 is a GPU without NVSwitches, 3 one that has joined."""


class NoDriverError(Exception):
    """No driver that answers; the message is for a person."""


class NvidiaDriver(Meter):
    """NVML, open from the first moment to `close`. Raises NoDriverError where it does not start."""

    is_simulated = False

    def __init__(self) -> None:
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
            raise NoDriverError("no NVIDIA driver here") from error
        except nvml.NVMLError as error:
            raise NoDriverError(_no_answer(error)) from error
        self._xids: XidWatch | None = None

    def __enter__(self) -> "NvidiaDriver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the driver."""
        with suppress(nvml.NVMLError):  # a driver that went away meanwhile has nothing left to close
            nvml.nvmlShutdown()

    # ---- inventory ----

    def list_gpus(self) -> list[Device]:
        """Return every GPU in NVML's order, a GPU in MIG mode as its instances; NoDriverError where none is counted.

        Only GPUs that can be opened are numbered: CUDA does not count one that is lost or that a cgroup forbids.
        """
        gpus: list[Device] = []
        num_opened = 0
        try:
            num_gpus = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NoDriverError(_no_answer(error)) from error
        for number in range(num_gpus):
            uuid = model = ""
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                model = nvml.nvmlDeviceGetName(handle)
                gpu = Device(num_opened, uuid, uuid, model, handle=handle, gpu_handle=handle)
                gpus += self._instances(gpu) or [gpu]
                num_opened += 1
            except nvml.NVMLError as error:
                gpus.append(Device(UNOPENED, uuid, uuid, model, problem=_unreadable(error)))
        return gpus

    def _instances(self, gpu: Device) -> list[Device]:
        """The MIG instances of `gpu`; empty where it is not in MIG mode."""
        mode = ask(nvml.nvmlDeviceGetMigMode, gpu.handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        instances = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            # For a number without an instance, drivers answer one of the first two; the third is somebody else's.
            with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NoPermission):
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, number)
                gi, ci = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
                name = f"MIG-{gpu.gpu_uuid}/{gi}/{ci}"
                uuid = nvml.nvmlDeviceGetUUID(handle)
                instances.append(replace(gpu, uuid=uuid, old_mig_name=name, handle=handle))
        return instances or [replace(gpu, problem="its MIG mode is on and it has no instance")]

    def examine(self, device: Device, index: int, *, is_as_is: bool) -> Gpu | LeftOut:
        """Return the GPU as it may be leased, or why it cannot be now; `is_as_is` takes it although it is in use."""
        handle, whole = device.handle, device.gpu_handle
        if device.problem:
            return LeftOut(device.uuid, index, device.model, device.problem)
        try:
            model = nvml.nvmlDeviceGetName(handle)
            is_banned = ask(nvml.nvmlDeviceGetComputeMode, whole) == nvml.NVML_COMPUTEMODE_PROHIBITED
            memory = memory_of(handle)
            used_bytes = memory[1] if memory and not is_numa_node(whole) else 0
            processes, drawn_bytes = compute_processes(handle), display_bytes(handle)
            is_displayed = ask(nvml.nvmlDeviceGetDisplayActive, whole) == nvml.NVML_FEATURE_ENABLED
            idle_bytes = DESKTOP_IDLE_BYTES if is_displayed or os.path.exists(WSL_DEVICE) else IDLE_MEMORY_BYTES
            capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, whole) or (0, 0)
            fault = self._fault_of(whole)
        except nvml.NVMLError as error:
            return LeftOut(device.uuid, index, device.model, _unreadable(error))
        if is_banned or fault:
            reason = "its compute mode is Prohibited (nvidia-smi -c 0 resets it)" if is_banned else str(fault)
            return LeftOut(device.uuid, index, device.model, reason)
        if not is_as_is and (reason := _why_busy(processes, used_bytes, drawn_bytes + idle_bytes)):
            return LeftOut(device.uuid, index, device.model, reason, is_busy=True)
        return Gpu(
            gpu_id=device.uuid,
            index=index,
            model=model,
            memory_gb=memory[0] / 1e9 if memory else 0.0,
            capability=capability,
            is_mig=bool(device.old_mig_name),
            number=None if device.old_mig_name else device.ordinal,
            is_as_is=is_as_is,
            used_bytes=used_bytes,
            idle_bytes=idle_bytes,
        )

    # ---- meter ----

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        found = {}
        for gpu_id in gpu_ids:
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
                if not is_numa_node(self._whole_of(gpu_id, handle)) and (memory := memory_of(handle)):
                    found[gpu_id] = memory[1]
        return found

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        with suppress(nvml.NVMLError):
            return compute_processes(nvml.nvmlDeviceGetHandleByUUID(gpu_id))
        return ()

    def fault(self, gpu_id: str) -> GpuFault | None:
        try:
            return self._fault_of(self._whole(gpu_id))
        except nvml.NVMLError_GpuIsLost:
            return GpuFault(FaultKind.LOST, gpu_id)
        except nvml.NVMLError_ResetRequired:
            return GpuFault(FaultKind.RESET_REQUIRED, gpu_id)
        except nvml.NVMLError:
            return None

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        if self._xids is None:
            self._xids = XidWatch()
        try:
            whole = nvml.nvmlDeviceGetUUID(self._whole(gpu_id))
        except nvml.NVMLError:  # lost, and so are its instances
            whole = gpu_id
        return self._xids.new(gpu_id, whole)

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        with suppress(nvml.NVMLError):
            listed = _running(nvml.nvmlDeviceGetHandleByUUID(gpu_id))
            return {entry.pid: entry.usedGpuMemory for entry in listed}
        return {}

    def _whole(self, gpu_id: str) -> Any:
        """Return the handle of a GPU, or of that of a MIG instance; raises NVMLError."""
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
        except nvml.NVMLError_GpuIsLost:  # NVML may answer so although another GPU is the lost one
            for number in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(number)
                    if nvml.nvmlDeviceGetUUID(handle) == gpu_id:
                        return handle
            raise
        return self._whole_of(gpu_id, handle)

    def _whole_of(self, gpu_id: str, handle: Any) -> Any:
        """Return the handle of the whole GPU; that of the instance where the driver does not say."""
        is_instance = gpu_id.startswith("MIG-")
        return (is_instance and ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)) or handle

    # ---- health ----

    def _fault_of(self, handle: Any) -> GpuFault | None:
        """The most severe fault of the memory of a whole GPU; `doctor` and the check before a lease both go by it."""
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        _, _, is_remap_pending, has_remap_failed = ask(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        num_uncorrected = ask(nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds) or 0
        is_retirement_pending = ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) == 1
        faults = {
            FaultKind.REMAP_FAILED: has_remap_failed,
            FaultKind.UNCORRECTED: num_uncorrected,
            FaultKind.REMAP_PENDING: is_remap_pending,
            FaultKind.RETIREMENT_PENDING: is_retirement_pending,
        }
        kind = next((kind for kind, is_there in faults.items() if is_there), None)
        return GpuFault(kind, nvml.nvmlDeviceGetUUID(handle), num_uncorrected) if kind else None

    def health(self) -> MachineHealth:
        """Return the state of the driver and of each GPU."""
        try:
            driver = str(ask(nvml.nvmlSystemGetDriverVersion) or "")
            version = ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
            gpus = tuple(self._health_of(number) for number in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            return MachineHealth(problem=_no_answer(error))
        return MachineHealth(driver, (version // 1000, version % 1000 // 10) if version else None, gpus)

    def _health_of(self, number: int) -> GpuHealth:
        uuid = model = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            links = link_states(handle)
            reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
            return GpuHealth(
                number,
                uuid,
                model,
                capability=ask(nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0),
                fault=self._fault_of(handle),
                slowdowns=tuple(words for name, words in SLOWDOWNS.items() if reasons & getattr(nvml, name)),
                num_links=len(links),
                num_active_links=sum(links.values()),
                fabric_problem=fabric_problem(handle),
            )
        except nvml.NVMLError as error:
            return GpuHealth(number, uuid, model, problem=_unreadable(error))


def _no_answer(error: Exception) -> str:
    return f"the NVIDIA driver does not answer ({str(error).rstrip('.')})"


def _unreadable(error: Exception) -> str:
    return f"cannot be read: {' '.join(str(error).split())}"


def _why_busy(processes: Sequence[GpuProcess], used_bytes: int, idle_bytes: int) -> str:
    """What keeps a readable GPU from being leased, or nothing."""
    if processes:
        named = ", ".join(map(str, processes[:MAX_NAMED_PROCESSES]))
        more = f" and {len(processes) - MAX_NAMED_PROCESSES} more" if len(processes) > MAX_NAMED_PROCESSES else ""
        return f"busy: {used_bytes / 1e9:.1f} GB held by {named}{more}"
    if used_bytes > idle_bytes:
        return f"busy: {used_bytes / 1e9:.1f} GB in use, by no process that the driver lists (another container?)"
    return ""


def ask(call: Any, *args: Any) -> Any:
    """Return the answer to an optional question; None if there is none, whatever the reason.

    Raises NVMLError for a GPU that is lost or needs a reset. Drivers refuse a question in many ways: INVALID_ARGUMENT
    for a MIG instance, UNKNOWN in sandboxes.
    """
    try:
        return call(*args)
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
        raise
    except nvml.NVMLError:
        return None


def _ask_or_fail(call: Any, *args: Any) -> Any:
    """Return the answer; None if this driver or GPU does not support or permit the question. Raises NVMLError."""
    try:
        return call(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def memory_of(handle: Any) -> tuple[int, int] | None:
    """Total and allocated bytes of a GPU, the driver's reserve counted as neither; None where they are not reported."""
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is not None:
        # Drivers differ on whether `used` counts the reserve; free and reserved memory they agree on.
        return memory.total, max(0, memory.total - memory.reserved - memory.free)
    memory = _ask_or_fail(nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else (memory.total, memory.used)


def is_numa_node(handle: Any) -> bool:
    """Whether a whole GPU is a NUMA node of the machine, as in GH200 and GB200.

    The operating system manages its memory and gives it back when it pleases: the total is sound, the amount in use
    proves nothing (NVML's documentation of nvmlDeviceGetMemoryInfo_v2).
    """
    return ask(nvml.nvmlDeviceGetNumaNodeId, handle) is not None


def compute_processes(handle: Any) -> tuple[GpuProcess, ...]:
    """Processes with a compute context on a GPU, without the server of MPS, which stays after its clients."""
    import psutil

    found = []
    for entry in _running(handle):
        command = name = ""
        with suppress(psutil.Error):  # not visible from here
            process = psutil.Process(entry.pid)
            name = process.name()
            command = " ".join(redact_argv(process.cmdline())) or name
        if len(command) > MAX_COMMAND_CHARS:
            command = command[: MAX_COMMAND_CHARS - 1] + "…"
        if name != MPS_SERVER:
            found.append(GpuProcess(entry.pid, entry.usedGpuMemory, command))
    return tuple(found)


def _running(handle: Any) -> list[Any]:
    listed = ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        listed = _ask_or_fail(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle) or []
    clients = ask(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle) or []
    return list({entry.pid: entry for entry in (*listed, *clients)}.values())


def display_bytes(handle: Any) -> int:
    """Memory of processes that only draw: a GPU with a screen is no busy GPU."""
    listed = ask(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or []
    return sum(entry.usedGpuMemory or 0 for entry in listed)


def fabric_problem(handle: Any) -> str:
    """Return why a GPU has not joined the fabric of its NVSwitches; empty where it has, and where there is none."""
    info = nvml.c_nvmlGpuFabricInfoV_t()
    if ask(nvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return ""
    if info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status:
        return f"joining it has failed with status {info.status}"
    return FABRIC_TROUBLE.get(info.state, "")


def link_states(handle: Any) -> dict[int, bool]:
    """Whether each NVLink that a GPU has is active, by its number."""
    states: dict[int, bool] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):  # the most of any model: others answer with an error
        with suppress(nvml.NVMLError):
            states[link] = nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
    return states


class XidWatch:
    """The Xids of every GPU since it was made; empty where the driver does not report them (WSL, some containers).

    NVML queues them from the moment at which a GPU is registered, so they are asked for when there is time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: dict[int, str] = {}
        """By the address that stands for a handle: a lost GPU no longer says its UUID."""
        self._seen: dict[str, list[int]] = {}
        self._num_reported: dict[str, int] = {}
        self._events: Any = None
        with suppress(nvml.NVMLError):
            events = nvml.nvmlEventSetCreate()
            for number in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(number)
                    self._uuids[_address(handle)] = nvml.nvmlDeviceGetUUID(handle)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self._events = events

    def new(self, gpu_id: str, whole: str) -> tuple[int, ...]:
        """Return the new ones of `gpu_id`: those of the GPU `whole`, which is itself or has it as a part."""
        with self._lock:
            with suppress(nvml.NVMLError):  # the last question times out
                for _ in range(MAX_XIDS if self._events is not None else 0):
                    event = nvml.nvmlEventSetWait_v2(self._events, 0)
                    self._seen.setdefault(self._uuids.get(_address(event.device), ""), []).append(event.eventData)
            seen = self._seen.get(whole, [])
            begin = self._num_reported.get(gpu_id, 0)
            self._num_reported[gpu_id] = len(seen)
            return tuple(seen[begin:])


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
