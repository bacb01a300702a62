"""What rlharness asks a driver of GPUs, and how the answers look; `nvidia` implements it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.bits.redaction import redact_argv
from harness.machine.gpu_health import GpuFault, MachineHealth
from harness.machine.inventory import IDLE_MEMORY_BYTES, Gpu
from harness.machine.meter import GpuProcess
from harness.machine.visible import Device, Visible

_MAX_COMMAND_CHARS = 60


class NoDriverError(Exception):
    """No driver that answers; the message is for a person."""

    def __init__(self, message: str, *, is_absent: bool = False) -> None:
        super().__init__(message)
        self.is_absent = is_absent
        """Whether this machine has no driver at all."""


class GpuReadError(Exception):
    """A GPU that answers with an error (fallen off the bus, reset required); the message says why it is left out."""

    def __init__(self, error: Exception) -> None:
        text = " ".join(str(error).split())
        super().__init__(f"cannot be read: {text}")


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A device as a driver lists it."""

    device: Device
    handle: Any
    """The library's handle of the GPU or of the part of one; None where there is none."""
    gpu_handle: Any
    """The library's handle of the whole GPU."""
    problem: str = ""
    """Why it cannot be used; empty where nothing is known against it."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver says of one device now."""

    model: str
    memory: tuple[int, int] | None
    """Total memory and memory in use, in bytes, without the driver's reserve; None where they say nothing."""
    processes: tuple[GpuProcess, ...]
    """Processes with a compute context on it."""
    memory_gb: float = 0.0
    """Memory a process may use there, in GB (10**9 bytes); 0 when unknown."""
    display_bytes: int = 0
    """Memory of processes that only draw."""
    idle_bytes: int = IDLE_MEMORY_BYTES
    """Memory that it may show while idle, beside that of processes that only draw."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) when unknown."""
    ban: str = ""
    """Why the driver admits no process; empty where it does."""
    fault: GpuFault | None = None


class GpuDriver(Protocol):
    """A driver, opened. Calls block for as long as the driver does."""

    def list_gpus(self) -> list[ListedGpu]:
        """Return every device in the driver's order; raises NoDriverError where it cannot even count them."""

    def visible(self, devices: Sequence[Device], environ: Mapping[str, str]) -> Visible:
        """Return the part of `devices` that `environ` leaves visible."""

    def read(self, gpu: ListedGpu) -> GpuReading:
        """Return what is to be known before a lease; raises GpuReadError."""

    def num_links(self, gpus: Sequence[Gpu]) -> dict[frozenset[str], int]:
        """Return the direct links between each two of `gpus`, by the set of their ids; absent means none known."""

    def used_memory_bytes(self, gpu_id: str) -> int | None:
        """Return the memory in use; None where it cannot be read or says nothing."""

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a compute context; empty where the driver lists none or does not report them."""

    def fault(self, gpu_id: str) -> GpuFault | None:
        """Return the fault with which the GPU runs no test; None without one, and where none can be read."""

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        """Return the errors (Xids) reported of a GPU since the last question, the first of which begins the watch."""

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        """Return the bytes of each process on a GPU, None where they are not reported; empty where none is listed."""

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return the most bytes that processes have held, by pid; empty where the driver keeps no account."""

    def health(self) -> MachineHealth:
        """Return the state of the driver and of each GPU."""

    def close(self) -> None:
        """Let go of the driver."""


def named_command(pid: int) -> str:
    """Return the command line of a process, without secrets and cut short; empty where it cannot be seen from here."""
    import psutil

    try:
        process = psutil.Process(pid)
        command = " ".join(redact_argv(process.cmdline())) or process.name()
    except psutil.Error:
        return ""
    return command if len(command) <= _MAX_COMMAND_CHARS else command[: _MAX_COMMAND_CHARS - 1] + "…"


def process_name(pid: int) -> str:
    """Return the name of the program of a process; empty where it cannot be seen from here."""
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
