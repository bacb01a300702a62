"""The driver, how each GPU does now, and which faults keep a GPU from running tests."""

from dataclasses import dataclass
from enum import StrEnum

from harness.bits.text import count


class FaultKind(StrEnum):
    """Fault with which a GPU runs no test."""

    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    REMAP_FAILED = "remap_failed"
    UNCORRECTED = "uncorrected"
    REMAP_PENDING = "remap_pending"
    RETIREMENT_PENDING = "retirement_pending"
    NODE_LOST = "node_lost"


_FAULTS = {
    FaultKind.LOST: "the driver has lost it: it has fallen off the bus",
    FaultKind.RESET_REQUIRED: "the driver requires a reset of it",
    FaultKind.REMAP_FAILED: "a row of its memory is faulty and could not be remapped",
    FaultKind.UNCORRECTED: "its memory has had {count} since the driver was loaded",
    FaultKind.REMAP_PENDING: "a faulty row of its memory waits to be remapped",
    FaultKind.RETIREMENT_PENDING: "a faulty page of its memory waits to be retired",
    FaultKind.NODE_LOST: "its node has left the cluster",
}
_OTHER_REMEDIES = {
    FaultKind.LOST: "reboot the machine; if it is lost again, reseat it or have it replaced",
    FaultKind.REMAP_FAILED: "have it replaced",
    FaultKind.NODE_LOST: "start Ray again on that node",
}


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
        return _FAULTS[self.kind].format(count=count(self.num_errors, "uncorrected error"))

    @property
    def remedy(self) -> str:
        """The remedy: a command that needs an idle GPU, or what to do with the machine."""
        reset = f"end the programs on it and run nvidia-smi --gpu-reset -i {self.gpu}, or reboot"
        return _OTHER_REMEDIES.get(self.kind, reset)

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
    has_driver: bool = True
