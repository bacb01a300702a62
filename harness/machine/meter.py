"""Whether a GPU's memory is back, at a lease's end, where it was when the lease began, and if not, who holds it.

The decision is pure; `MemoryMeter` is the seam it is fed through: `gpus.DriverMeter` for real GPUs, `NoMeter` for
simulated ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from harness.machine.gpu_health import GpuFault
from harness.machine.inventory import IDLE_MEMORY_BYTES


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


class Holder(StrEnum):
    """Who holds a GPU's memory."""

    OURS = "ours"  # a process of the attempt that had the lease
    FOREIGN = "foreign"  # a process that lives and is not ours: named, never killed
    UNKNOWN = "unknown"  # memory without a process that can be seen


@dataclass(frozen=True, slots=True)
class StillHeld:
    """A GPU that is not back at its baseline."""

    holder: Holder
    reason: str
    """Message: "2.1 GB above its baseline, held by pid 4711 (python train.py)"."""


class MemoryMeter(Protocol):
    """Reads GPUs. Calls are synchronous and take milliseconds, unless the driver itself hangs; any thread may call."""

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        """Memory in use on each GPU, without the driver's reserve; a GPU that cannot be read is left out."""
        ...

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a compute context on this GPU; empty if the driver lists or reports none."""
        ...

    def fault(self, gpu_id: str) -> GpuFault | None:
        """Return the fault with which this GPU runs no test; None without one, and where none can be read."""
        ...

    @property
    def is_simulated(self) -> bool:
        """Whether its GPUs are simulated, so that there is no memory to measure."""
        ...

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        """Return the errors (Xids) that the driver has reported of this GPU since the last question; see nvidia.py."""
        ...

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        """Return the bytes of each process on this GPU, by pid; None where the driver does not report them."""
        ...

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return the most bytes that processes, ended or not, have held on this GPU; empty without accounting."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


class NoMeter:
    """Meter of simulated GPUs: nothing is known, so every GPU is back at once."""

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        return {}

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        return ()

    def fault(self, gpu_id: str) -> GpuFault | None:
        return None

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        return ()

    is_simulated = True

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        return {}

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        return {}

    def close(self) -> None:
        pass


def holder_of(process: GpuProcess, our_pids: Collection[int]) -> Holder:
    """Return the holder of `process`, given every pid that the attempt ever had."""
    if process.pid in our_pids:
        return Holder.OURS
    return Holder.FOREIGN if process.command else Holder.UNKNOWN


def return_to_baseline(
    baseline_bytes: int | None,
    now_bytes: int | None,
    processes: Sequence[GpuProcess],
    our_pids: Collection[int],
    tolerance_bytes: int = IDLE_MEMORY_BYTES,
) -> StillHeld | None:
    """None where a GPU is back as it was when it was leased, else who holds it.

    `baseline_bytes` and `now_bytes` are its memory in use at the lease and now, None where it cannot be read;
    `processes` those on it now. A process that can be named holds the GPU whatever its memory; one that cannot be seen
    counts only together with memory, because a driver's pids are unreliable in containers.
    """
    excess_bytes = max(0, (now_bytes or 0) - (baseline_bytes or 0))
    for holder in (Holder.OURS, Holder.FOREIGN):
        holding = [process for process in processes if holder_of(process, our_pids) is holder]
        if holding:
            return StillHeld(holder, f"{_gb(excess_bytes)} above its baseline, held by {', '.join(map(str, holding))}")
    if baseline_bytes is not None and now_bytes is None:
        return StillHeld(Holder.UNKNOWN, "its memory can no longer be read")
    if baseline_bytes is not None and excess_bytes > tolerance_bytes:
        named = ", ".join(map(str, processes)) or "no process that the driver lists"
        return StillHeld(Holder.UNKNOWN, f"{_gb(excess_bytes)} above its baseline, held by {named}")
    return None


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
