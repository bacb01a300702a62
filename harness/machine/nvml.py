"""Access to NVML: the only file that imports pynvml, which it does on the first call.

The module it returns is pynvml itself. A value that NVML does not report becomes None. The caller leaves out a GPU that
answers with an error (fallen off the bus, reset required).
"""

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness.machine.gpu_driver import NoDriverError, named_command, process_name
from harness.machine.gpu_health import MemoryErrors
from harness.machine.meter import GpuProcess

MPS_SERVER = "nvidia-cuda-mps-server"


def open_nvml() -> Any:
    """The pynvml module, with NVML started; raises NoDriverError."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        raise NoDriverError("no NVIDIA driver here", is_absent=True) from error
    except pynvml.NVMLError as error:
        raise NoDriverError(no_answer(error)) from error
    return pynvml


@contextmanager
def kept_open() -> Iterator[None]:
    """Keep NVML open for a `with`, so that GPUs without persistence mode wake once, however often it is opened there.

    Without a driver that answers, nothing happens.
    """
    try:
        nvml = open_nvml()
    except NoDriverError:
        yield
        return
    try:
        yield
    finally:
        shut_down(nvml)


def no_answer(error: Exception) -> str:
    """Return the message for a driver that fails with `error`."""
    return f"the NVIDIA driver does not answer ({str(error).rstrip('.')})"


def shut_down(nvml: Any) -> None:
    """Undo `open_nvml`."""
    with suppress(nvml.NVMLError):  # a driver that went away meanwhile has nothing left to close
        nvml.nvmlShutdown()


def ask(nvml: Any, call: Any, *args: Any) -> Any:
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


def ask_or_fail(nvml: Any, call: Any, *args: Any) -> Any:
    """Return the answer; None if this driver or GPU does not support or permit the question. Raises NVMLError."""
    try:
        return call(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def memory_of(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """Total and allocated bytes of a GPU, the driver's reserve counted as neither; None where they are not reported."""
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is not None:
        # Drivers differ on whether `used` counts the reserve; free and reserved memory they agree on.
        return memory.total, max(0, memory.total - memory.reserved - memory.free)
    memory = ask_or_fail(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else (memory.total, memory.used)


def is_numa_node(nvml: Any, handle: Any) -> bool:
    """Whether a whole GPU is a NUMA node of the machine, as in GH200 and GB200.

    The operating system manages its memory and gives it back when it pleases: the total is sound, the amount in use
    proves nothing (NVML's documentation of nvmlDeviceGetMemoryInfo_v2).
    """
    return ask(nvml, nvml.nvmlDeviceGetNumaNodeId, handle) is not None


def compute_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes with a compute context on a GPU, without the server of MPS, which stays after its clients."""
    return tuple(
        GpuProcess(entry.pid, entry.usedGpuMemory, named_command(entry.pid))
        for entry in _running(nvml, handle)
        if process_name(entry.pid) != MPS_SERVER
    )


def memory_by_pid(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Memory in bytes of each process with a compute context on a GPU; None for those where NVML does not report it."""
    return {entry.pid: entry.usedGpuMemory for entry in _running(nvml, handle)}


def _running(nvml: Any, handle: Any) -> list[Any]:
    listed = ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        listed = ask_or_fail(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle) or []
    clients = ask(nvml, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle) or []
    return list({entry.pid: entry for entry in (*listed, *clients)}.values())


def accounted_peaks(nvml: Any, handle: Any, pids: Iterable[int]) -> dict[int, int]:
    """Most memory in bytes that each process has held on a GPU, by pid; empty where accounting mode is off.

    NVML keeps account of a process after its end too, until newer ones fill its buffer.
    """
    if ask(nvml, nvml.nvmlDeviceGetAccountingMode, handle) != nvml.NVML_FEATURE_ENABLED:
        return {}
    peaks = {}
    for pid in pids:
        with suppress(nvml.NVMLError_NotFound):
            stats = ask(nvml, nvml.nvmlDeviceGetAccountingStats, handle, pid)
            if stats is not None and stats.maxMemoryUsage is not None:
                peaks[pid] = stats.maxMemoryUsage
    return peaks


def memory_errors(nvml: Any, handle: Any) -> MemoryErrors:
    """Return the errors of the memory of a whole GPU: three questions, which the driver answers from its counters."""
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    _, _, is_pending, has_failed = ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    return MemoryErrors(
        num_uncorrected=ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds) or 0,
        has_remap_failed=bool(has_failed),
        is_remap_pending=bool(is_pending),
        is_retirement_pending=ask(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) == 1,
    )


def display_bytes(nvml: Any, handle: Any) -> int:
    """Memory of processes that only draw: a GPU with a screen is no busy GPU."""
    listed = ask(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or []
    return sum(entry.usedGpuMemory or 0 for entry in listed)


_FABRIC_TROUBLE = {1: "it has not been started", 2: "it is still coming up"}
"""By NVML_GPU_FABRIC_STATE_*; 0 is a GPU without NVSwitches, 3 one that has joined."""


def fabric_problem(nvml: Any, handle: Any) -> str:
    """Return why a GPU has not joined the fabric of its NVSwitches; empty where it has, and where there is none."""
    info = nvml.c_nvmlGpuFabricInfoV_t()
    if ask(nvml, nvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return ""
    if info.state in _FABRIC_TROUBLE:
        return _FABRIC_TROUBLE[info.state]
    if info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status:
        return f"joining it has failed with status {info.status}"
    return ""


def link_states(nvml: Any, handle: Any) -> dict[int, bool]:
    """Whether each NVLink that a GPU has is active, by its number."""
    states: dict[int, bool] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):  # the most of any model: others answer with an error
        with suppress(nvml.NVMLError):
            states[link] = nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
    return states


def linked_bus_ids(nvml: Any, handle: Any) -> list[bytes]:
    """PCI bus ids of what a GPU's active links end in, one per link."""
    peers: list[bytes] = []
    for link, is_active in link_states(nvml, handle).items():
        with suppress(nvml.NVMLError):
            if is_active:
                peers.append(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId.lower())
    return peers
