"""Access to NVML: the only file that imports pynvml, which it does on the first call.

The module it returns is pynvml itself. A value that NVML does not report (NOT_SUPPORTED and the like) becomes None. The
caller leaves out a GPU that answers with an error (fallen off the bus, reset required).
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from harness.machine.gpu_driver import NoDriverError, named_command
from harness.machine.gpu_health import MemoryErrors
from harness.machine.meter import GpuProcess


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


def no_answer(error: Exception) -> str:
    """Return the message for a driver that fails with `error`."""
    return f"the NVIDIA driver does not answer ({str(error).rstrip('.')})"


def shut_down(nvml: Any) -> None:
    """Undo `open_nvml`."""
    with suppress(nvml.NVMLError):  # a driver that went away meanwhile has nothing left to close
        nvml.nvmlShutdown()


def ask(nvml: Any, call: Any, *args: Any) -> Any:
    """Return the result of `call`; None if this driver or GPU does not support or permit it."""
    try:
        return call(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def memory_of(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """Total and allocated bytes of a GPU, the driver's reserve counted as neither; None where they say nothing.

    Where a GPU is a NUMA node of the machine (GB200), the operating system manages its memory and gives it back when
    it pleases, so the amount in use proves nothing (NVML's documentation of nvmlDeviceGetMemoryInfo_v2).
    """
    if ask(nvml, nvml.nvmlDeviceGetNumaNodeId, handle) is not None:
        return None
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is not None:
        # Drivers differ on whether `used` counts the reserve; free and reserved memory they agree on.
        return memory.total, max(0, memory.total - memory.reserved - memory.free)
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else (memory.total, memory.used)


def compute_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes with a compute context on a GPU."""
    return tuple(
        GpuProcess(entry.pid, entry.usedGpuMemory, named_command(entry.pid)) for entry in _running(nvml, handle)
    )


def memory_by_pid(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Memory in bytes of each process with a compute context on a GPU; None for those where NVML does not report it."""
    return {entry.pid: entry.usedGpuMemory for entry in _running(nvml, handle)}


def _running(nvml: Any, handle: Any) -> list[Any]:
    listed = ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        listed = ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle) or []
    return list(listed)


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
