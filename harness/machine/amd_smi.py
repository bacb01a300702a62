"""Access to AMD SMI: the only file that loads amdsmi, which it does on the first call.

AMD's Python package and its library libamd_smi.so must be of one release, so the copy that ROCm keeps beside the
library ($ROCM_HOME or $ROCM_PATH, else /opt/rocm, in share/amd_smi) goes before an installed one. The module that is
returned is amdsmi itself. A value that the library does not report (NOT_SUPPORTED and the like) becomes None.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from harness.machine.gpu_driver import GpuReadError, NoDriverError, named_command
from harness.machine.gpu_health import MemoryErrors
from harness.machine.meter import GpuProcess
from harness.process.child_env import KFD

LIBRARY = "libamd_smi.so"
_ABSENT = ("AMDSMI_STATUS_DRIVER_NOT_LOADED", "AMDSMI_STATUS_NO_DRV", "AMDSMI_STATUS_NOT_FOUND")
_UNKNOWN = (
    *("AMDSMI_STATUS_NOT_SUPPORTED", "AMDSMI_STATUS_NOT_YET_IMPLEMENTED", "AMDSMI_STATUS_NO_PERM"),
    *("AMDSMI_STATUS_FILE_NOT_FOUND", "AMDSMI_STATUS_NO_DATA"),
)
_NO_PACKAGE = f"an AMD driver is here, but not {LIBRARY} with its Python package amdsmi (ROCm's amd-smi-lib)"


def open_amd_smi(environ: Mapping[str, str]) -> Any:
    """The amdsmi module, with the library started; raises NoDriverError."""
    amdsmi = _import_amd_smi(environ)
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        if _status(amdsmi, error) in _ABSENT or not os.path.exists(KFD):
            raise NoDriverError("no AMD driver here", is_absent=True) from error
        raise NoDriverError(no_answer(error)) from error
    return amdsmi


def no_answer(error: Exception) -> str:
    """Return the message for a driver that fails with `error`."""
    return f"the AMD driver does not answer ({' '.join(str(error).split())})"


def shut_down(amdsmi: Any) -> None:
    """Undo `open_amd_smi`."""
    with suppress(amdsmi.AmdSmiException):  # a driver that went away meanwhile has nothing left to close
        amdsmi.amdsmi_shut_down()


def ask(amdsmi: Any, function: str, *args: Any) -> Any:
    """Return the result of a function of amdsmi; None if this release, driver or GPU does not support or permit it.

    None also if the package cannot read what its library gave.
    """
    call = getattr(amdsmi, function, None)
    if call is None:
        return None
    try:
        return call(*args)
    except amdsmi.AmdSmiException as error:
        if _status(amdsmi, error) in _UNKNOWN:
            return None
        raise
    except (LookupError, TypeError, ValueError):
        return None


@contextmanager
def reading(amdsmi: Any) -> Iterator[None]:
    """Raise GpuReadError where the library reports an error within a `with`."""
    try:
        yield
    except amdsmi.AmdSmiException as error:
        raise GpuReadError(error) from error


def memory_of(amdsmi: Any, handle: Any) -> tuple[int, int] | None:
    """Total and allocated bytes of a GPU; None where they say nothing."""
    memory = ask(amdsmi, "amdsmi_get_gpu_vram_usage", handle)
    if memory is None or not _is_some(memory["vram_total"]) or not isinstance(memory["vram_used"], int):
        return None
    return memory["vram_total"] * 2**20, memory["vram_used"] * 2**20


def compute_processes(amdsmi: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes with memory on a GPU.

    A process without any counts for nothing: AMD SMI opens the driver itself, and so lists the process that asks. Many
    releases also list a process on every GPU of the machine, with the memory that it has on each.
    """
    listed = ask(amdsmi, "amdsmi_get_gpu_process_list", handle) or []
    return tuple(
        GpuProcess(entry["pid"], entry["memory_usage"]["vram_mem"], named_command(entry["pid"]))
        for entry in listed
        if _is_some(entry["memory_usage"]["vram_mem"])
    )


def memory_errors(amdsmi: Any, handle: Any) -> MemoryErrors:
    """Return the errors of the memory of a GPU, of which AMD SMI counts the uncorrected ones."""
    counts = ask(amdsmi, "amdsmi_get_gpu_total_ecc_count", handle) or {}
    num_uncorrected: Any = counts.get("uncorrectable_count")
    return MemoryErrors(num_uncorrected if _is_some(num_uncorrected) else 0)


def memory_by_pid(amdsmi: Any, handle: Any) -> dict[int, int | None]:
    """Memory in bytes of each process on a GPU, of those that have some; None where AMD SMI does not report it."""
    listed = ask(amdsmi, "amdsmi_get_gpu_process_list", handle) or []
    amounts = {entry["pid"]: entry["memory_usage"]["vram_mem"] for entry in listed}
    return {pid: amount if isinstance(amount, int) else None for pid, amount in amounts.items() if amount != 0}


def link_states(amdsmi: Any, handle: Any) -> tuple[bool, ...]:
    """Whether each XGMI link that a GPU has is up."""
    links = ask(amdsmi, "amdsmi_get_gpu_xgmi_link_status", handle)
    return tuple(state == "U" for state in links["status"] if state in ("U", "D")) if links else ()


def are_linked(amdsmi: Any, handle: Any, other: Any) -> bool:
    """Whether XGMI joins two GPUs directly."""
    kinds = getattr(amdsmi, "AmdSmiLinkType", None) or getattr(amdsmi, "AmdSmiIoLinkType", None)
    xgmi = next((int(kind) for kind in kinds or () if kind.name.endswith("XGMI")), None)
    link = ask(amdsmi, "amdsmi_topo_get_link_type", handle, other)
    return link is not None and xgmi is not None and link["type"] == xgmi and link["hops"] <= 1


def _is_some(amount: object) -> bool:
    """Whether `amount` is a number above zero; amdsmi writes "N/A" for an unknown one."""
    return isinstance(amount, int) and amount > 0


def _status(amdsmi: Any, error: Exception) -> str:
    """Name of the status that an error of amdsmi carries, as amdsmi_wrapper spells it."""
    code, known = getattr(error, "err_code", None), amdsmi.amdsmi_wrapper
    return next((name for name in (*_ABSENT, *_UNKNOWN) if getattr(known, name, "") == code), "")


def _import_amd_smi(environ: Mapping[str, str]) -> Any:
    """Import amdsmi; raises NoDriverError.

    The package prints to standard output and breaks off where it finds no library, so the library is looked for first,
    where the package looks.
    """
    if "amdsmi" in sys.modules:
        return sys.modules["amdsmi"]
    rocm = Path(environ.get("ROCM_HOME") or environ.get("ROCM_PATH") or "/opt/rocm")
    spec = PathFinder.find_spec("amdsmi", [str(rocm / "share" / "amd_smi"), *sys.path])
    if spec is None or spec.loader is None or spec.origin is None:
        raise _no_package()
    folders = (str(rocm / "lib"), "", os.path.dirname(spec.origin), "/opt/rocm/lib")
    if not any(_loads(os.path.join(folder, LIBRARY)) for folder in folders):
        raise _no_package()
    amdsmi = sys.modules["amdsmi"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(amdsmi)
    except Exception as error:  # a package of another release than its library fails with whatever it meets first
        del sys.modules["amdsmi"]
        raise NoDriverError(f"amdsmi cannot be imported ({type(error).__name__}: {error})") from error
    return amdsmi


def _no_package() -> NoDriverError:
    if os.path.exists(KFD):
        return NoDriverError(_NO_PACKAGE)
    return NoDriverError("no AMD driver here", is_absent=True)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
