"""Memory and processes of GPUs, read through a `Meter`: `nvml.NvidiaDriver` for real GPUs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.machine.gpu_health import GpuFault


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a compute context on a GPU, as the driver lists it."""

    pid: int
    """Process id from the driver; in a container it may be another namespace's number, or missing altogether."""
    used_bytes: int | None
    """Its memory on that GPU; None where the driver does not say."""
    command: str
    """Its command line without secrets, cut short; empty where no such process can be seen from here."""

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command or 'not visible from here'})"


class Meter:
    """Reads GPUs; this one, of simulated GPUs, knows nothing, so every GPU is back at once.

    Calls are synchronous and take milliseconds, unless the driver itself hangs; any thread may call.
    """

    is_simulated = True
    """Whether its GPUs are simulated, so that there is no memory to measure."""

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        """Memory in use on each GPU, without the driver's reserve; a GPU that cannot be read is left out."""
        return {}

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a compute context on this GPU; empty if the driver lists or reports none."""
        return ()

    def fault(self, gpu_id: str) -> GpuFault | None:
        """Return the fault with which this GPU runs no test; None without one, and where none can be read."""
        return None

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        """Return the errors (Xids) that the driver has reported of this GPU since the last question; see nvml.py."""
        return ()

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        """Return the bytes of each process on this GPU, by pid; None where the driver does not report them."""
        return {}

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return the most bytes that processes, ended or not, have held on this GPU; empty without accounting."""
        return {}

    def close(self) -> None:
        """Close the driver."""


def why_not_back(
    baseline_bytes: int | None, now_bytes: int | None, processes: Sequence[GpuProcess], tolerance_bytes: int
) -> str:
    """Why a GPU is not back as it was when it was leased, with who holds it; empty where it is.

    `baseline_bytes` and `now_bytes` are its memory in use at the lease and now, None where it cannot be read. A process
    that can be named holds the GPU whatever its memory; one that cannot be seen counts only together with memory,
    because a driver's pids are unreliable in containers.
    """
    excess_bytes = max(0, (now_bytes or 0) - (baseline_bytes or 0))
    named = [process for process in processes if process.command]
    if not named and (baseline_bytes is None or (now_bytes is not None and excess_bytes <= tolerance_bytes)):
        return ""
    if not named and now_bytes is None:
        return "its memory can no longer be read"
    holders = ", ".join(map(str, named or processes)) or "no process that the driver lists"
    return f"{excess_bytes / 1e9:.1f} GB above its baseline, held by {holders}"
