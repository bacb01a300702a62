"""The driver, how each GPU does now, the faults that keep one from running tests, its memory and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.bits.findings import FindingCode
from harness.bits.text import count

RESET = "end the programs on it and run nvidia-smi --gpu-reset -i {gpu}, or reboot"


class FaultKind(FindingCode):
    """Fault with which a GPU runs no test: its words, and its remedy, a command that needs an idle GPU."""

    LOST = (
        "lost",
        "the driver has lost it: it has fallen off the bus",
        "reboot the machine; if it is lost again, reseat it or have it replaced",
    )
    RESET_REQUIRED = "reset_required", "the driver requires a reset of it", RESET
    REMAP_FAILED = "remap_failed", "a row of its memory is faulty and could not be remapped", "have it replaced"
    UNCORRECTED = "uncorrected", "its memory has had {errors} since the driver was loaded", RESET
    REMAP_PENDING = "remap_pending", "a faulty row of its memory waits to be remapped", RESET
    RETIREMENT_PENDING = "retirement_pending", "a faulty page of its memory waits to be retired", RESET
    NODE_LOST = "node_lost", "its node has left the cluster", "start Ray again on that node"


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault of one GPU, and its remedy."""

    kind: FaultKind
    gpu: str
    """UUID of the whole GPU."""
    num_errors: int = 0
    """Number of uncorrected errors, for that kind."""

    @property
    def what(self) -> str:
        """The fault in words."""
        return self.kind.sentence.format(errors=count(self.num_errors, "uncorrected error"))

    @property
    def remedy(self) -> str:
        """The remedy: a command that needs an idle GPU, or what to do with the machine."""
        return self.kind.remedy.format(gpu=self.gpu)

    def __str__(self) -> str:
        return f"{self.what} (remedy: {self.remedy})"


FATAL_XIDS = {  # NVIDIA's "XID Errors"; those that a program can cause by itself (13, 31, 43) are left out
    48: "a memory error that could not be corrected",
    64: "a faulty row of its memory could not be noted",
    79: "it has fallen off the bus",
    94: "a memory error, contained",
    95: "a memory error, not contained",
    119: "its system processor does not answer",
    120: "its system processor has failed",
    140: "a memory error that it has not recovered from",
}
"""Errors after which a GPU runs no test until it has been reset."""


def describe_xid(xid: int) -> str:
    """Return the number of an error with its meaning: "Xid 79 (it has fallen off the bus)"."""
    return f"Xid {xid}" + (f" ({FATAL_XIDS[xid]})" if xid in FATAL_XIDS else "")


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One whole GPU."""

    number: int
    """Number in the driver's order."""
    uuid: str
    model: str
    capability: tuple[int, int] = (0, 0)
    """(0, 0) when unknown."""
    problem: str = ""
    """Why it cannot be read; empty where it can."""
    fault: GpuFault | None = None
    """Fault of a GPU that can be read; None without one."""
    slowdowns: tuple[str, ...] = ()
    """Reasons for its lowered clocks, without its load and its power cap."""
    num_links: int = 0
    """NVLinks it has."""
    num_active_links: int = 0
    fabric_problem: str = ""
    """Why it has not joined the fabric of its NVSwitches; empty where it has, and where there is none."""


@dataclass(frozen=True, slots=True)
class MachineHealth:
    """The driver and the GPUs of this machine, whatever the environment leaves visible."""

    driver: str = ""
    """Its version, "570.86.15"; empty where there is none, or it does not say."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA the driver serves; None where it does not say."""
    gpus: tuple[GpuHealth, ...] = ()
    problem: str = ""
    """Why the driver's library did not start; empty where it did."""


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
